"""A platform's servers: one for all that is set while it runs, one whose log is encrypted."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import cases
from tests.conformance.run import Findings, examine
from tests.servers import SERVERS, Server, server

ENCRYPTED = cases.Setting("encrypted log")
_COMMON = {"max_allowed_packet": "64M"}


def examine_all(folder: Path) -> dict[str, Findings]:
    """Every platform, side by side: each mostly waits for its servers."""
    with ThreadPoolExecutor(len(cases.PLATFORMS)) as pool:
        running = {
            platform.name: pool.submit(examine_platform, platform, folder / platform.name.replace(" ", "-"))
            for platform in cases.PLATFORMS
        }
        return {name: found.result() for name, found in running.items()}


def examine_platform(platform: cases.Platform, folder: Path) -> Findings:
    folder.mkdir(parents=True)
    types, settings, flows = cases.types_of(platform), cases.settings_of(platform), cases.flows_of(platform)
    with server(platform.flavor, folder / "plain", release=platform.version, **_COMMON) as running:
        findings = examine(running, folder, types, settings, flows)
    with _encrypted(platform, folder / "encrypted") as running:
        encrypted = examine(running, folder, types, [ENCRYPTED], [])
    findings.types |= encrypted.types
    for name, where in encrypted.events.items():
        findings.events.setdefault(name, []).extend(where)
    return findings


@contextmanager
def _encrypted(platform: cases.Platform, folder: Path) -> Iterator[Server]:
    """MariaDB takes a key file; MySQL a component, which a file beside the executable names."""
    folder.mkdir()
    if platform.flavor == "mariadb":
        keys = folder / "keys"
        keys.write_text(f"1;{'a7' * 32}\n")
        options = {
            "plugin_load_add": "file_key_management",
            "file_key_management_filename": str(keys),
            "encrypt_binlog": "ON",
        }
        with server(platform.flavor, folder / "server", release=platform.version, **_COMMON, **options) as running:
            yield running
        return
    installed = SERVERS / "mysql" / "usr"
    program = folder / "mysqld"
    shutil.copy(installed / "sbin" / "mysqld", program)
    (folder / "mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    plugins = folder / "plugins"
    plugins.mkdir()
    component = "component_keyring_file"
    (plugins / f"{component}.cnf").write_text(json.dumps({"path": str(folder / "keyring"), "read_only": False}))
    (plugins / f"{component}.so").symlink_to(installed / "lib" / "mysql" / "plugin" / f"{component}.so")
    options = {"plugin_dir": str(plugins), "binlog_encryption": "ON"}
    with server("mysql", folder / "server", program=str(program), **_COMMON, **options) as running:
        yield running
