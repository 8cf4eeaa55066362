"""`menura WORD ...`: hands over to the component that registered WORD as an entry point.

So a database host with the agent alone has `menura agent`, and no word that can't work there.
"""

import os
import sys
from importlib.metadata import entry_points

GROUP = "menura.commands"

#: word: the extra that it needs, and what it is for
WORDS = {
    "up": ("api", "the receiving side on one machine: gateway, API with dashboard, sink"),
    "agent": ("agent", "beside the database: check what is configured, stream changes to the gateway"),
    "gateway": ("gateway", "take agents' changes in and land them as Parquet"),
    "api": ("api", "REST and the dashboard"),
    "sink": ("spark", "from what has landed into the lake's tables"),
    "status": ("api", "sources and their tables: state, lag, freshness, rows"),
    "agents": ("api", "which agents there are"),
    "sources": ("api", "which databases they have"),
    "tables": ("api", "which tables a source has"),
    "events": ("api", "what happened to a table beside changes of rows"),
    "sync": ("api", "start and stop the sync of tables"),
    "dump": ("api", "copy what tables held before their sync began"),
}


def main() -> int:
    """Run the command named by the first argument; returns its exit code."""
    commands = {point.name: point for point in entry_points(group=GROUP)}
    arguments = sys.argv[1:]
    if not arguments or arguments[0] not in commands:
        wanted = arguments[0] if arguments else ""
        asked_for_help = wanted in ("", "-h", "--help", "help")
        lines = [f"  {word:<9}{WORDS[word][1]}" for word in WORDS if word in commands]
        usage = "\n".join(("usage: menura WORD ..., and menura WORD --help", *lines))
        print(usage, file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    word = arguments[0]
    sys.argv = [f"menura {word}", *arguments[1:]]
    # gRPC tells of each broken connection on standard error beside our log, which says the same in its own form
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        command = commands[word].load()
    except ModuleNotFoundError as missing:
        extra = WORDS[word][0]
        print(f"menura {word}: the package {missing.name} is not installed; install menura[{extra}]", file=sys.stderr)
        return 2
    return int(command() or 0)


if __name__ == "__main__":
    sys.exit(main())
