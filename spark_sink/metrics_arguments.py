"""The arguments of commands that serve metrics: the address, and who may read."""

import argparse
from pathlib import Path


def add_metrics_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics, /livez and /readyz there")
    command.add_argument(
        "--metrics-token-file",
        metavar="FILE",
        type=Path,
        help="with a token that /metrics needs, which it does wherever other machines reach the port",
    )
