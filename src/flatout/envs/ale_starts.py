"""How the episodes of an Atari game begin: resets by ale-py's own threads, and games whose resets
forget what was played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIVES_AT_END = 0
"""The lives of a game that is over, in all games except those of `LASTING_LIVES`."""

LASTING_LIVES = frozenset({"adventure"})

FORGETFUL = frozenset({
    "adventure", "air_raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis",
    "atlantis2", "backgammon", "bank_heist", "basic_math", "battle_zone", "beam_rider",
    "berzerk", "blackjack", "bowling", "boxing", "breakout", "carnival", "casino", "centipede",
    "chopper_command", "crazy_climber", "darkchambers", "defender", "demon_attack",
    "donkey_kong", "double_dunk", "earthworld", "elevator_action", "enduro", "et",
    "fishing_derby", "flag_capture", "freeway", "frogger", "frostbite", "galaxian", "gopher",
    "gravitar", "hero", "human_cannonball", "jamesbond", "journey_escape", "kaboom", "kangaroo",
    "keystone_kapers", "king_kong", "klax", "koolaid", "krull", "laser_gates", "lost_luggage",
    "mario_bros", "miniature_golf", "montezuma_revenge", "mr_do", "ms_pacman", "name_this_game",
    "othello", "pacman", "phoenix", "pitfall", "pitfall2", "pong", "private_eye", "qbert",
    "riverraid", "road_runner", "robotank", "skiing", "solaris", "space_invaders",
    "star_gunner", "superman", "tennis", "tetris", "tic_tac_toe_3d", "trondead", "turmoil",
    "tutankham", "up_n_down", "video_checkers", "video_chess", "video_cube", "video_pinball",
    "wizard_of_wor", "word_zapper", "zaxxon",
})  # fmt: skip
"""ROMs whose state after a reset depends only on the emulator's seed and on the number of resets
since, whatever was played. `tests/envs/test_ale_starts.py` measures it. In the other games a reset
keeps parts of the memory."""


def forgets(settings: Mapping[str, Any]) -> bool:
    """Return whether a reset forgets what was played, and only resets draw random numbers.

    Args:
        settings: those of `vector_settings`.
    """
    return (
        not settings["repeat_action_probability"]
        and not isinstance(settings["frameskip"], tuple)
        and settings["game"] in FORGETFUL
    )


def resets_within(settings: Mapping[str, Any]) -> bool:
    """Return whether ale-py can reset games at the end of the step in which they end. It then does
    not report the lives at the end."""
    return not isinstance(settings["frameskip"], tuple) and settings["game"] not in LASTING_LIVES
