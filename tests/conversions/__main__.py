"""`make conversions`: exits with 1 where a lake table is not what its source is, or was read again for nothing."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.conversions.run import SERVERS, Plan, convert, total


def main() -> int:
    parser = argparse.ArgumentParser(prog="conversions", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=56, help="of each server")
    parser.add_argument("--rounds", type=int, default=9, help="ALTERs of each table")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    arguments = parser.parse_args()
    # a run that is told to end takes its servers and its stack with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = Plan(tuple(arguments.servers), arguments.tables, arguments.rounds, arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="conversions-"))
    outcomes = convert(plan, folder)
    print(*outcomes, total(outcomes), f"(logs: {folder})", sep="\n", flush=True)
    return int(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
