"""The page of all commands, from the parsers that read them: argparse's of agent, doctor and sink, Typer's else."""

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from menura import doctor_command
from menura.cli import WORDS
from typer.main import get_command

from agent import cli as agent_cli
from controlplane_api.cli import COMMANDS
from controlplane_api.commands.options import add_shared_options
from spark_sink import cli as sink_cli
from spark_sink import run_arguments
from tests.docs_site.tables import cell, table

HEAD = """# Commands

Made from the commands' own parsers. `menura COMMAND --help` says the same in a terminal.
Each command that asks the API takes its address, tenant and token also from `MENURA_API`, `MENURA_TENANT` and
`MENURA_API_TOKEN_FILE`. [Exit codes](exit-codes.md) are a page of their own.
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    meaning: str
    default: str


@dataclass(frozen=True, slots=True)
class Command:
    words: str
    meaning: str
    parameters: list[Parameter]


def page() -> str:
    parts, word = [HEAD], ""
    for command in sorted(commands(), key=lambda command: command.words):
        first = command.words.split()[0]
        if first != word:
            word = first
            parts.append(f"## menura {word}\n\n{WORDS[word].purpose[0].upper()}{WORDS[word].purpose[1:]}.\n")
        rows = [(f"`{each.name}`", cell(each.meaning), cell(each.default)) for each in command.parameters]
        shown = table(("option", "meaning", "default"), rows) if rows else ""
        parts.append(f"### `menura {command.words}`\n\n{command.meaning}\n\n{shown}")
    return "\n".join(parts)


def commands() -> Iterator[Command]:
    """All that do something themselves."""
    parsers = {"agent": agent_cli._parser(), "doctor": doctor_command._parser(), "sink": run_arguments.parser()}
    handed_on = {word: sys.modules[main.__module__].parser() for word, main in sink_cli._HANDED_ON.items()}
    for word, parser in {**parsers, **handed_on}.items():
        yield from _of_argparse(word, parser, parser.description or "")
    for word, (module, name) in COMMANDS.items():
        app = getattr(importlib.import_module(module), name)
        add_shared_options(app)
        yield from _of_typer(word, get_command(app))


def _of_argparse(words: str, parser: argparse.ArgumentParser, meaning: str) -> Iterator[Command]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        told = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, each in action.choices.items():
            yield from _of_argparse(f"{words} {name}", each, told.get(name, ""))
    if not below:
        shown = [action for action in parser._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
        yield Command(words, _sentence(meaning), [_parameter(action) for action in shown])


def _parameter(action: argparse.Action) -> Parameter:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    name = " ".join(part for part in (", ".join(action.option_strings), str(value)) if part)
    meaning = re.sub(r"\s*\(default: %\(default\)s\)", "", action.help or "").replace("%%", "%")
    default = action.default if action.default not in (None, False, [], "", argparse.SUPPRESS) else ""
    return Parameter(name, meaning, "needed" if action.required else str(default))


def _of_typer(words: str, command: Any) -> Iterator[Command]:
    below = getattr(command, "commands", {})
    for name, each in below.items():
        yield from _of_typer(f"{words} {name}", each)
    if not below or getattr(command, "invoke_without_command", False):
        shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        yield Command(words, _sentence(command.help or ""), [_typer_parameter(each) for each in shown])


def _typer_parameter(parameter: Any) -> Parameter:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
    else:
        value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
        name = ", ".join((*parameter.opts, *parameter.secondary_opts)) + value
    default = parameter.default if parameter.default not in (None, False, (), "") else ""
    default = "" if callable(default) or "Sentinel" in str(type(default)) else default
    return Parameter(name, getattr(parameter, "help", "") or "", "needed" if parameter.required else str(default))


def _sentence(words: str) -> str:
    text = " ".join(words.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) or not text else ".")
