"""`make churn SEEDS=1 SECONDS=60 SERVER="mariadb mysql" INGREDIENTS="convert swap"`: exits with 1 on any difference."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.churn.run import INGREDIENTS, SERVERS, Plan, churn
from tests.servers import ROOT


def main() -> int:
    arguments = _parser().parse_args()
    # a run that is told to end takes its servers and its stack with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ingredients = frozenset(arguments.ingredients or INGREDIENTS) - frozenset(arguments.without)
    sound = True
    for seed in arguments.seeds:
        for name in arguments.servers:
            allowed = None if arguments.allow is None else frozenset(arguments.allow)
            plan = Plan(name, seed, arguments.seconds, arguments.rate, ingredients, allowed)
            folder = Path(tempfile.mkdtemp(prefix=f"churn-{name}-{seed}-"))
            report = churn(plan, folder)
            log = ROOT / "build" / f"churn-{name}-{seed}.log"
            log.parent.mkdir(exist_ok=True)
            lines = [f"{at:8.2f} {statement}" for at, statement in report.statements]
            lines += [f"refused: {statement}: {why}" for statement, why in report.refused]
            lines += [f"{at:8.2f} {victim}" for at, victim in report.kills]
            lines += [f"{at:8.2f} dump {path}" for at, path in report.ordered]
            log.write_text("\n".join([str(report), *lines, *report.told, ""]))
            print(report, f"  (statements: {log}; logs: {folder})", sep="\n", flush=True)
            sound = sound and report.is_sound
    return 0 if sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="churn", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=1000, help="transactions a second")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=["mariadb", "mysql"])
    parser.add_argument("--ingredients", nargs="*", choices=INGREDIENTS, help="default: all")
    parser.add_argument("--without", nargs="*", choices=INGREDIENTS, default=[])
    parser.add_argument(
        "--allow", nargs="*", help="codes with which a table may have stopped; default: those of agent/CONFORMANCE.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
