"""``flatout --completion bash``: a script with which a shell completes commands and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.config.hyper import HYPER
from flatout.config.settings import presets
from flatout.errors import UsageError
from flatout_explain.cli.parsing import Flag

SHELLS = ("bash", "zsh")

SCRIPT = """\
_flatout() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  if [ "$COMP_CWORD" = 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}} $before" in
{values}
      *) case "${{COMP_WORDS[1]}}" in
{flags}
      esac;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _flatout flatout
"""


def completion(shell: str, commands: Mapping[str, Sequence[Flag]]) -> str:
    """Return the script for a shell.

    Args:
        shell: one of `SHELLS`.
        commands: the flags of each command.

    Raises:
        UsageError: a shell for which there is none.
    """
    if shell not in SHELLS:
        raise UsageError(f"--completion {shell}: name a shell, {' or '.join(SHELLS)}.")
    values, flags = list[str](), list[str]()
    for name, every in commands.items():
        typed = " ".join(flag.typed for flag in every if not flag.word)
        flags.append(f'      {name}) words="{typed} --help";;')
        if any(flag.name == "algorithm" and flag.word for flag in every):
            values.append(f'      "{name} {name}") words="{" ".join(HYPER)}";;')
        values += [
            f'      "{name} {flag.typed}") words="{" ".join(choices)}";;'
            for flag in every
            if (choices := _choices(flag))
        ]
    script = SCRIPT.format(
        commands=" ".join(commands), values="\n".join(values), flags="\n".join(flags)
    )
    return f"autoload -U bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script


def _choices(flag: Flag) -> list[str]:
    """Return the possible values of a flag; empty where they are not words to choose from."""
    if flag.name == "preset":
        return presets()
    return list(flag.choices)
