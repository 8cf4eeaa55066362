"""A gateway process for tests that kill it: `python -m tests.gateway.killable LANDING DATABASE PORT`."""

import asyncio
import sys
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.server import serve
from tests.gateway.sql_registry import open_registry


async def main(landing: str, database_file: str, port: str) -> None:
    database, registry = open_registry(Path(database_file))
    config = GatewayConfig(landing, listen=f"127.0.0.1:{port}", commit_spacing_ms=5, poll_seconds=0.1)
    await serve(config, registry, asyncio.Event())
    database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
