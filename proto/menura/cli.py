"""`menura WORD ...`: hands over to the component whose word it is, which has registered itself as an entry point.

A component whose packages are not installed says which extra has them. A word that is none is told which is like it.
"""

import os
import sys
from dataclasses import dataclass

from menura.distributions import entry_points, version

GROUP = "menura.components"


@dataclass(frozen=True, slots=True)
class Word:
    #: name of an entry point
    component: str
    #: of the distribution, with the packages that the word needs
    extra: str
    purpose: str


WORDS = {
    "up": Word("controlplane_api", "api", "the receiving side on one machine: gateway, API with dashboard, sink"),
    "agent": Word(
        "agent", "agent", "beside the database: enrol, check the configuration, stream changes to the gateway"
    ),
    "doctor": Word("doctor", "agent", "checks of this host's part of Menura, each with what mends it"),
    "completion": Word("completion", "agent", "a script that completes words, for bash or zsh"),
    "gateway": Word("controlplane_api", "gateway", "take agents' changes in and land them as Parquet"),
    "api": Word("controlplane_api", "api", "REST and the dashboard"),
    "sink": Word("spark_sink", "spark", "from what has landed into the lake's tables"),
    "status": Word("controlplane_api", "api", "sources and their tables: state, lag, freshness, rows"),
    "top": Word("controlplane_api", "api", "speed, lag, freshness and dumps of sources and busy tables, live"),
    "why": Word("controlplane_api", "api", "where a table's lag comes from, by stage, the largest cause first"),
    "api-token": Word("controlplane_api", "api", "make, list and revoke what people and scripts show the API"),
    "login": Word("controlplane_api", "api", "a link that logs a browser in to the dashboard"),
    "token": Word("controlplane_api", "api", "make, list and revoke what enrols agents"),
    "agents": Word("controlplane_api", "api", "which agents there are; add and revoke them"),
    "audit": Word("controlplane_api", "api", "what was done, by whom, and what was refused"),
    "sources": Word("controlplane_api", "api", "which databases they have; configure one at its agent"),
    "tenants": Word("controlplane_api", "api", "whose agents and sources there are"),
    "plan": Word("controlplane_api", "api", "what apply would change, and what that costs"),
    "apply": Word("controlplane_api", "api", "make sources and syncs what a file says"),
    "tables": Word("controlplane_api", "api", "which tables a source has"),
    "offset": Word("controlplane_api", "api", "a table's position in its source's log: show, set"),
    "table": Word("controlplane_api", "api", "one table: its columns, keys, sync, and how they have changed"),
    "filter": Word("controlplane_api", "api", "which columns of a table leave its host: show, set"),
    "ledger": Word("controlplane_api", "api", "what became of a table's continuity, its gaps, and who ordered what"),
    "events": Word("controlplane_api", "api", "what happened to a table beside changes of rows"),
    "lakes": Word("controlplane_api", "api", "lakes and their sinks"),
    "lake": Word("spark_sink", "spark", "read tables of a lake as of one cut of each source, or a time"),
    "trace": Word("spark_sink", "spark", "one row: its changes from the source's log to what readers of the lake see"),
    "export": Word("spark_sink", "spark", "changes of a lake as Debezium's messages, to files or standard output"),
    "search": Word("spark_sink", "spark", "search in tables and views of a lake: index, query, check"),
    "tail": Word("spark_sink", "spark", "changes of a lake's tables as they come, for a person"),
    "plugin": Word("spark_sink", "spark", "Python classes that are told of each change of a lake's tables"),
    "sync": Word(
        "controlplane_api", "api", "start and stop the sync of tables, and bring back those that have stopped"
    ),
    "dump": Word("controlplane_api", "api", "copy what tables held before their sync began"),
    "view": Word("controlplane_api", "api", "joined views: create, list, show, explain, drop"),
    "upgrade": Word("controlplane_api", "api", "give agents another version: packages, rollouts, the way back"),
    "verify": Word("controlplane_api", "api", "compare tables with the lake, without sending their rows"),
}

#: what people type first, and what it is: its first word, or its first two, in place of which the command's are
OTHER_WORDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("agent", "list"): ("agents",),
    ("agents", "list"): ("agents",),
    ("dumps",): ("dump", "list"),
    ("lakes", "list"): ("lakes",),
    ("source",): ("sources",),
    ("source", "list"): ("sources",),
    ("sources", "list"): ("sources",),
    ("table", "list"): ("tables",),
    ("tables", "list"): ("tables",),
    ("tenant",): ("tenants",),
    ("tenant", "list"): ("tenants",),
    ("tenants", "list"): ("tenants",),
    ("tokens",): ("token", "list"),
    ("upgrades",): ("upgrade", "show"),
    ("views",): ("view", "list"),
}
_HELP = ("", "-h", "--help", "help")
_VERSION = ("version", "--version", "-V")


def installed_words() -> dict[str, Word]:
    """Whose components are there."""
    components = {point.name for point in entry_points(GROUP)}
    return {name: word for name, word in WORDS.items() if word.component in components}


def meant(arguments: list[str]) -> list[str]:
    """
    >>> meant(["agent", "list", "--json"]), meant(["source", "show", "shop"]), meant(["agent", "run"])
    (['agents', '--json'], ['sources', 'show', 'shop'], ['agent', 'run'])
    """
    for length in (2, 1):
        typed = tuple(arguments[:length])
        if typed in OTHER_WORDS:
            return [*OTHER_WORDS[typed], *arguments[len(typed) :]]
    return arguments


def _unknown(wanted: str, words: dict[str, Word]) -> str:
    """What to say of a first word that none of `words` is."""
    from difflib import get_close_matches  # noqa: PLC0415  (which the agent's process has no need of)

    if wanted in WORDS:
        return f"{wanted} is not installed on this host; it comes with menura[{WORDS[wanted].extra}]"
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in wanted[:40])
    near = get_close_matches(wanted, words, 1)
    meant = f" Did you mean menura {near[0]}?" if near else ""
    return f"{shown!r} is no command.{meant} menura --help lists all of them."


def main() -> int:
    """Run the command named by the first argument; returns its exit code."""
    components = {point.name: point for point in entry_points(GROUP)}
    words = installed_words()
    arguments = meant(sys.argv[1:])
    wanted = arguments[0] if arguments else ""
    if wanted in _HELP:
        lines = [f"  {name:<11}{word.purpose}" for name, word in words.items()]
        print("\n".join(("usage: menura WORD ..., menura WORD --help, and menura --version", *lines)))
        return 0
    if wanted in _VERSION:
        print(f"menura {version('menura')}")
        return 0
    if wanted not in words:
        print(f"menura: {_unknown(wanted, words)}", file=sys.stderr)
        return 2
    name, word = arguments[0], words[arguments[0]]
    sys.argv = [f"menura {name}", *arguments[1:]]
    # gRPC tells of each broken connection on standard error beside our log, which says the same in its own form
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        command = components[word.component].load()
    except ModuleNotFoundError as missing:
        found = f"the package {missing.name} is not installed; install menura[{word.extra}]"
        print(f"menura {name}: {found}", file=sys.stderr)
        return 2
    return int(command() or 0)


if __name__ == "__main__":
    sys.exit(main())
