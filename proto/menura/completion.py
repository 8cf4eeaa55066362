"""`menura completion bash | zsh`: a script that completes words, commands and options, and starts no Python for it.

Comes in: the words of `menura`, and of each installed component the commands and options that its own parsers have: the
module of its entry point says them with `completions`. Goes out: a shell's script.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Mapping

from menura.distributions import entry_points

#: after which words which ones may follow: commands and options. ("sync", "start") is `menura sync start`
Words = Mapping[tuple[str, ...], list[str]]

_BASH = """_menura_words() {{
    local place="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$place $word" in
        {places}) place="$place $word" ;;
        esac
    done
    local -A after=(
{after}
    )
    COMPREPLY=($(compgen -W "${{after[menura$place]}}" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _menura_words menura
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def main() -> int:
    """Print the script; returns the exit code."""
    parser = argparse.ArgumentParser(prog="menura completion", description="A script that completes menura's words.")
    parser.add_argument("shell", choices=("bash", "zsh"), help='e.g. for bash: eval "$(menura completion bash)"')
    shell = parser.parse_args().shell
    from menura.cli import GROUP, installed_words  # noqa: PLC0415  (which hands over to this module)

    words: dict[tuple[str, ...], list[str]] = {(): sorted(installed_words())}
    for point in entry_points(GROUP):
        try:
            of_component = getattr(importlib.import_module(point.module), "completions", None)
            words |= of_component() if of_component is not None else {}
        except ModuleNotFoundError as missing:
            print(f"# {point.name} is left out: the package {missing.name} is not installed", file=sys.stderr)
    print((_ZSH if shell == "zsh" else "") + bash(words), end="")
    return 0


def bash(words: Words) -> str:
    """A script of bash 4 or later."""
    places = "|".join(shlex.quote(f" {' '.join(place)}") for place in sorted(words) if place)
    after = "\n".join(
        f"        [{shlex.quote(' '.join(('menura', *place)))}]={shlex.quote(' '.join(following))}"
        for place, following in sorted(words.items())
    )
    return _BASH.format(places=places, after=after)


def of_parser(place: tuple[str, ...], parser: argparse.ArgumentParser) -> dict[tuple[str, ...], list[str]]:
    """What argparse knows.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_subparsers().add_parser("run").add_argument("--config")
    >>> of_parser(("agent",), parser)
    {('agent',): ['--help', 'run'], ('agent', 'run'): ['--config', '--help']}
    """
    actions = parser._actions
    found = {place: [option for action in actions for option in action.option_strings if option.startswith("--")]}
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            found[place] += list(action.choices)
            for name, below in action.choices.items():
                found |= of_parser((*place, name), below)
    return {each: sorted(options) for each, options in found.items()}
