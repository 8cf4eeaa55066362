"""A platform's servers: one for all that is set while it runs, one whose log is encrypted.

MySQL's second one is the only member of a replication group too.
"""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import cases
from tests.conformance.flows import flows_of
from tests.conformance.mysql import examine_mysql
from tests.conformance.run import Findings
from tests.servers import SERVERS, Server, free_port, server

ENCRYPTED = cases.Setting("encrypted log")
ENCRYPTED_IN_A_GROUP = cases.Setting("encrypted log, group replication")
_MEMBER_SECONDS = 300.0
_COMMON = {"max_allowed_packet": "64M"}


def examine_all(folder: Path) -> dict[str, Findings]:
    """Every MySQL and MariaDB, side by side: each mostly waits for its servers."""
    with ThreadPoolExecutor(len(cases.PLATFORMS)) as pool:
        running = {
            platform.name: pool.submit(examine_platform, platform, folder / platform.name.replace(" ", "-"))
            for platform in cases.PLATFORMS
        }
        return {name: found.result() for name, found in running.items()}


def examine_platform(platform: cases.Platform, folder: Path) -> Findings:
    folder.mkdir(parents=True)
    types, settings, flows = cases.types_of(platform), cases.settings_of(platform), flows_of(platform)
    with server(platform.flavor, folder / "plain", release=platform.version, **_COMMON) as running:
        findings = examine_mysql(running, folder, types, settings, flows)
    with _encrypted(platform, folder / "encrypted") as running:
        setting = ENCRYPTED
        if platform.flavor == "mysql":
            setting = ENCRYPTED_IN_A_GROUP
            _make_a_group(running)
        encrypted = examine_mysql(running, folder, types, [setting], [])
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
    for library in (f"{component}.so", "group_replication.so"):
        (plugins / library).symlink_to(installed / "lib" / "mysql" / "plugin" / library)
    options = {"plugin_dir": str(plugins), "binlog_encryption": "ON", "plugin_load_add": "group_replication.so"}
    with server("mysql", folder / "server", program=str(program), **_COMMON, **options) as running:
        yield running


def _make_a_group(member: Server) -> None:
    """Of this member alone; it can be written when it is its primary."""
    member.run(
        "SET GLOBAL group_replication_group_name = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa'",
        f"SET GLOBAL group_replication_local_address = '127.0.0.1:{free_port()}'",
        "SET GLOBAL group_replication_bootstrap_group = ON",
        "START GROUP_REPLICATION",
    )
    deadline = time.monotonic() + _MEMBER_SECONDS
    while member.run(
        "SELECT @@GLOBAL.super_read_only, member_state FROM performance_schema.replication_group_members"
    ) != [(0, "ONLINE")]:
        assert time.monotonic() < deadline, "the member does not come up"
        time.sleep(0.1)
