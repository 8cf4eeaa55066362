"""The page of all keys of the configuration files. What each means stands here; that no key is missing or gone, the
code says: a key that its reader takes and this page lacks, or the other way about, ends the build.
"""

import ast
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from agent.settings import DumpConfig
from controlplane_api.identity import oidc_settings
from tests.docs_site.tables import cell, table
from tests.servers import ROOT

HEAD = """# Configuration keys

A key that is unknown, a wrong type and a missing value are one line that names the file, the line, the key and the fix:
`menura agent check --config agent.yaml`. Of this page's lists a test says that they are whole.
"""

AGENT = {
    "tenant": "Whose agent it is; needed where the agent has not enrolled.",
    "agent": "Its name: 1 to 63 of a-z, 0-9, - and _. Default: the host's name.",
    "state_folder": "Where it keeps table definitions, pending XA transactions and its identity. Made again when lost.",
    "gateway.address": "HOST:PORT of the gateway, or of the balancer before several.",
    "gateway.identity": "File of the key and certificate of its enrolment. Default: identity.pem in the state folder.",
    "gateway.compression": "lz4 (default), or zstd: fewer bytes for more of this host's CPU.",
    "gateway.tls.ca": "With certificates of your own PKI: whom it trusts as a gateway.",
    "gateway.tls.certificate": "The agent's own certificate, with its key below.",
    "gateway.tls.key": "The key of that certificate.",
    "policy": "File that says what may ever leave this host. Default: /etc/menura/policy.yaml where it is there.",
    "remote": "Lets the control plane configure sources; {} within this host and the folder of secrets.",
    "remote.secrets": "The only folder whose files such a source may name. Default: secrets in the state folder.",
    "remote.variables": "Environment variables that such a source may name.",
    "remote.hosts": "Servers beyond this host that such a source may dial: names, *.patterns, networks.",
    "sources": "The sources, by name; may be left out where remote is there.",
}
SOURCE = {
    "kind": "mysql (MySQL and MariaDB) or postgresql. Default: mysql.",
    "filter_policy": "accept: what the filter does not list leaves. drop: only what it lists.",
    "filter": "Tables, DATABASE.TABLE or TABLE in any. With accept, an entry without settings drops the table.",
    "filter.TABLE.ignored_columns": "Columns whose bytes never leave this host.",
    "filter.TABLE.renamed_from": "Former names of the table, under which its rows of then are judged.",
    "filter.TABLE.unlogged_changes": "For this table, in place of the source's.",
    "unlogged_changes": "Rows that the server changes without logging them: reread (default), stop or note.",
    "dump": "The load that dumps may cause, see below; what a dump itself asks for only lowers it.",
}
SERVER = {
    "host": "Name or address, or the path of a Unix socket.",
    "port": "Default: 3306, or 5432.",
    "user": "The agent's account.",
    "password": "The password; in what the control plane sends {file: NAME} or {env: NAME}, and never the password.",
    "password_file": "File that holds it.",
    "password_env": "Environment variable that holds it.",
    "database": "PostgreSQL: the one database of the source.",
    "tls.mode": "MySQL: disabled, preferred, required, verify_ca, verify_identity. PostgreSQL: disable, prefer,"
    " require, verify-ca, verify-full. Default: the last one, beyond this host or where ca is given.",
    "tls.ca": "File of the CA that the server's certificate is verified by. Default: those that this host trusts.",
    "tls.certificate": "File of a client's certificate, where the server wants one.",
    "tls.key": "The key of that certificate.",
}
MYSQL = {
    "client": "The server that describes tables and gives their rows; may be a replica.",
    "binlog": "The server whose log is read, if another one; keys as client's.",
    "server_id": "The agent's id as a replica. Default: derived from tenant, agent and source.",
    "harmless_statements": "Tables, each DATABASE.TABLE: a statement in the log that names one to be changed"
    " changes no other.",
}
POSTGRESQL = {
    "client": "The server that describes tables and gives their rows; may be a standby.",
    "replication": "The server whose changes are read, if another one; keys as client's.",
    "slot": "The replication slot. Default: menura_, the source's name and a digest; the agent makes and drops it.",
    "publication": "Default: menura.",
    "filtered_by": "agent (default), or server: the publication leaves out what the filter leaves out.",
    "max_streamed_bytes": "Disk for large transactions that come while they run; 0 (default): the server keeps them.",
}
DUMP = {
    "workers": "Chunks that are read at the same time.",
    "max_rows_per_second": "0: not limited.",
    "max_bytes_per_second": "0: not limited.",
    "max_threads_running": "Of the whole server; above it dumps wait. 0: not looked at.",
    "max_replica_lag_seconds": "Of a replica; above it dumps wait. Default: 60 where this user may see it.",
    "chunk_seconds": "How long the reading of a chunk should take.",
    "max_chunk_rows": "Rows of a chunk at most.",
    "max_rereads_per_hour": "Of one table whose server changed rows without logging them; one more stops it.",
    "windows": "When dumps may read, e.g. 22:00-06:00 Europe/Berlin. Default: always.",
}
POLICY = {
    "default": "closed or open: what becomes of a table that no line names.",
    "requests": "What gateways may ask for: cartography, changes, dumps, configuration. Left out: all.",
    "sources": "Names of sources that may run here. Left out: all.",
    "databases": "DATABASE: allowed or denied, or its tables; names may have *.",
    "databases.DATABASE.TABLE": "allowed or denied, or the keys below.",
    "databases.DATABASE.TABLE.columns": "all, or the columns that leave.",
    "databases.DATABASE.TABLE.ignored_columns": "Columns that stay.",
    "databases.DATABASE.TABLE.sources": "Of which sources the line speaks. Left out: of all.",
    "databases.DATABASE.TABLE.renamed_from": "Former names of the table, for which the line speaks too.",
}
FLEET = {
    "version": "1.",
    "tenant": "Whose fleet. Default: --tenant.",
    "agents": "Agents by name; one that nobody knows is made.",
    "agents.AGENT.sources": "Its sources by name, each with the settings of an agent's file; {}: it has none.",
    "agents.AGENT.sources.SOURCE.tables": "Tables to sync. Left out: the file says nothing of tables.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.start": "dump (default), oldest or now.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump": "Of its dump, the keys below.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump.priority": "Higher ones are read first.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump.force": "Also where the server may not keep its log long enough.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump.workers": "Lowers the agent's own.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump.rows_per_second": "Lowers the agent's own.",
    "agents.AGENT.sources.SOURCE.tables.TABLE.dump.bytes_per_second": "Lowers the agent's own.",
    "views": "Joined views by name.",
    "views.VIEW.sql": "Its SELECT.",
    "views.NAME.every": "How often it is recomputed, e.g. 10m, 2h or 1d. Default: it is followed change by change.",
    "views.NAME.key": "With `every`: a list of its columns that tell its rows apart. Default: its groups, else all.",
}
OIDC = {
    "name": "On the button of the login page.",
    "issuer": "As its discovery document names itself.",
    "client_id": "Of Menura at the provider.",
    "client_secret_file": "File with the secret, beside this file. Without it PKCE alone proves the client.",
    "scopes": "With openid.",
    "name_claim": "Whom the audit log names.",
    "groups_claim": "Of the ID token: a text, or a list of texts.",
    "grants": "A list of {group, role, tenant}; without a tenant of the whole fleet.",
}
SECTIONS = {
    "agent.yaml": AGENT,
    "agent.yaml: sources.SOURCE": SOURCE,
    "agent.yaml: a source of MySQL or MariaDB": MYSQL,
    "agent.yaml: a source of PostgreSQL": POSTGRESQL,
    "agent.yaml: client, binlog, replication": SERVER,
    "agent.yaml: dump": DUMP,
    "policy.yaml": POLICY,
    "fleet.yaml": FLEET,
    "oidc.yaml": OIDC,
}
#: of tuples of keys
_NAMES = ("KEYS", "TLS_FILES", "_LIMITS")
#: whose readers take the keys of which sections
READERS = {
    (
        "agent/config.py", "agent/config_entries.py",
        "agent/sources/mysql/config.py", "agent/sources/postgresql/config.py",
    ): (AGENT, SOURCE, MYSQL, POSTGRESQL, SERVER, DUMP),
    ("agent/veto/policy_file.py",): (POLICY,),
    ("controlplane_api/commands/fleet_file.py",): (FLEET,),
}  # fmt: skip


def page() -> str:
    check()
    defaults = {**_defaults_of_dump(), **oidc_settings._DEFAULTS}
    parts = [HEAD]
    for title, keys in SECTIONS.items():
        has_defaults = keys in (DUMP, OIDC)
        rows = [(f"`{key}`", cell(what), _shown(defaults, key))[: 2 + has_defaults] for key, what in keys.items()]
        head = ("key", "meaning", "default")[: 2 + has_defaults]
        parts.append(f"## {title}\n\n{table(head, rows)}")
    return "\n".join(parts)


def check() -> None:
    """Raises `AssertionError`."""
    for files, sections in READERS.items():
        described = {word for keys in sections for key in keys for word in key.split(".") if not word.isupper()}
        taken = set().union(*(set(_keys(file)) for file in files))
        assert described == taken, f"{files}: not described: {taken - described}; unknown: {described - taken}"
    assert OIDC.keys() == {*oidc_settings._REQUIRED, *oidc_settings._DEFAULTS}, "the keys of oidc.yaml"


def _keys(file: str) -> Iterator[str]:
    """Of tuples whose name says so, of tuples that `mapping` is given, and of the limits of dumps."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.endswith(_NAMES):
                yield from _texts(value)
            case ast.Assign(targets=[ast.Name(id="most")], value=ast.Dict(keys=keys)):
                yield from (key.value for key in keys if isinstance(key, ast.Constant))
            case ast.Call(func=ast.Attribute(attr="mapping"), args=[given]):
                yield from _texts(given)
            case ast.Compare(left=ast.Constant(value="tables"), ops=[ast.NotIn()]):
                yield "tables"


def _texts(node: ast.expr) -> Iterator[str]:
    yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _defaults_of_dump() -> dict[str, Any]:
    return {each.name: _default(each) for each in fields(DumpConfig)}


def _default(each: Field[Any]) -> Any:
    return each.default if each.default is not MISSING else ""


def _shown(defaults: dict[str, Any], key: str) -> str:
    value = defaults.get(key, "")
    return "" if value in ("", None, ()) else cell(", ".join(value) if isinstance(value, list) else str(value))
