"""`menura WORD ...`: hands over to the component that registered WORD as an entry point.

So a database host with the agent alone has `menura agent`, and no word that can't work there.
"""

import os
import sys
from importlib.metadata import entry_points

GROUP = "menura.commands"


def main() -> int:
    """Run the command named by the first argument; returns its exit code."""
    commands = {point.name: point for point in entry_points(group=GROUP)}
    arguments = sys.argv[1:]
    if not arguments or arguments[0] not in commands:
        wanted = arguments[0] if arguments else ""
        asked_for_help = wanted in ("", "-h", "--help", "help")
        print(f"usage: menura {{{','.join(sorted(commands))}}} ...", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    word = arguments[0]
    sys.argv = [f"menura {word}", *arguments[1:]]
    # gRPC tells of each broken connection on standard error beside our log, which says the same in its own form
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        command = commands[word].load()
    except ModuleNotFoundError as missing:
        extra = {"agent": "agent", "gateway": "gateway", "sink": "spark"}.get(word, "api")
        print(f"menura {word}: the package {missing.name} is not installed; install menura[{extra}]", file=sys.stderr)
        return 2
    return int(command() or 0)


if __name__ == "__main__":
    sys.exit(main())
