"""Names by which libraries call or read what a program defines."""

from __future__ import annotations

import argparse
import collections
import multiprocessing.connection
import subprocess
import sys
import threading
from pathlib import Path

PROTOCOLS = {
    "Module": """
        forward train eval parameters named_parameters modules children buffers state_dict apply to
        load_state_dict zero_grad extra_repr reset_parameters get_extra_state set_extra_state
        training device dtype add_module register_buffer setup type half float double share_memory
    """,
    "LightningModule": """
        forward train eval parameters state_dict load_state_dict training device dtype log log_dict
        training_step validation_step test_step predict_step configure_optimizers configure_model
        train_dataloader val_dataloader test_dataloader prepare_data setup teardown optimizers
        backward optimizer_step on_train_epoch_end on_validation_epoch_end on_train_batch_end
        on_train_start on_train_end on_fit_start trainer current_epoch global_step
    """,
    "Env": """
        step reset render close seed action_space observation_space metadata render_mode spec
        reward_range np_random unwrapped env action observation reward wrapper_attr
        reset_async reset_wait step_async step_wait num_envs single_action_space
        single_observation_space env_is_wrapped env_method get_attr set_attr
        agents possible_agents agent_selection agent_iter last observe rewards terminations
        truncations infos state num_agents max_num_agents observation_spaces action_spaces
        _cumulative_rewards _accumulate_rewards _was_dead_step _clear_rewards
    """,
    "Process": "run start join terminate kill close name daemon pid exitcode authkey sentinel",
    "Thread": "run start join name daemon ident native_id",
    "Optimizer": "step zero_grad param_groups state defaults state_dict load_state_dict",
    "Dataset": "",
    "Exception": "args",
}
"""Methods and attributes that libraries call, or read, on instances of their derived classes, by
the end of the base class's name; those of any other base class are the union of all, and more."""

OTHER_PROTOCOLS = """
    action_masks call call_async call_wait batch_size collate_fn compute_loss compute_output_shape
    build default do_GET do_POST emit filter flush format get_config handle handle_data
    handle_starttag init initialize jvp log_prob model num_timesteps on_epoch_begin on_epoch_end
    on_step on_training_end predict reset_states reduction sample send_bytes set_epoch state stop
    test_step train_step training_env transform update update_state vjp write _build _on_rollout_end
    _on_rollout_start _on_step _on_training_end _on_training_start _predict _setup_model learn
"""
PROTOCOL = frozenset(" ".join([OTHER_PROTOCOLS, *PROTOCOLS.values()]).split())

READ_BY_GYM_WORDS = """
    action_space observation_space single_action_space single_observation_space num_envs
    metadata render_mode spec reward_range np_random unwrapped
"""
READ_BY_GYM = frozenset(READ_BY_GYM_WORDS.split())
"""Attributes that libraries read without a base class of theirs."""

FRAMEWORKS_WORDS = """
    T abs act add_scalar all amax amin any apply apply_fn argmax argmin argsort array asarray
    astype at backward bernoulli bias block_until_ready boundary chunk clamp clip clone close
    concat conj contiguous copy_ cos cpu create cumprod cumsum cuda data dataset detach device
    diagonal diff dim dot dtype entropy env envs eps eval exp expand extend fill_ fit flatten
    flip float forward gather get_action grad grad_fn gradient half high imag index_select init
    is_set item items kernel keys kernel_size key learn lengths log log_prob long logits loss
    low lr map masked_fill max mean median metrics min mode model module momentum mse mul
    multinomial n ndim new_zeros norm normal num_envs numel numpy opt_state optimizer optimizers
    out params permute pipe policy predict probs prod put ravel repeat requires_grad reset
    reshape result reward rewards rng rollout_buffer round rsample run sample select set shape
    sigmoid sign sin size softmax sort spec split sqrt square squeeze stack start state states
    std step stop stride submit sum summary t tanh target targets tensor to tokens tolist topk
    train training transpose tril type unbind uniform unsqueeze update value values var view
    weight weights write zero_ zero_grad zeros
"""
FRAMEWORKS = frozenset(FRAMEWORKS_WORDS.split())
"""Attributes of arrays, tensors, modules, optimisers, environments and the like."""

BUILTIN = frozenset(
    name
    for kind in (
        str, bytes, list, dict, set, int, float, complex, range, memoryview, object, BaseException,
        collections.deque, collections.OrderedDict, collections.Counter, threading.Thread,
        threading.Event, threading.Condition, multiprocessing.Process, subprocess.Popen, Path,
        multiprocessing.connection.Connection, argparse.ArgumentParser, type(sys.stdout),
    )
    for name in dir(kind)
)  # fmt: skip
LIBRARY = PROTOCOL | FRAMEWORKS | BUILTIN
"""Attributes that an object of unknown kind may have from a library."""

BY_STRING = {
    "getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "register_buffer",
    "register_parameter", "add_module", "env_method", "get_attr", "set_attr", "call", "call_async",
    "namedtuple", "update_wrapper", "patch", "object",
}  # fmt: skip
"""Functions whose string arguments are names."""

ARGUMENT_NAMES = {"static_argnames", "donate_argnames", "signature", "locals", "argnames"}
COMMAND_LINES = {"tyro", "fire", "click", "hydra", "typer"}
RESET = {"seed", "options"}  # gymnasium passes them by keyword
