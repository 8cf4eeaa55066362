"""Privileges of MySQL and MariaDB: the least that the agent needs, and what an account has. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from agent.sources.mysql.server.quoting import quoted_name

FLAVORS = ("mysql", "mariadb")
GLOBAL = "*.*"
_GRANT = re.compile(
    r"GRANT (?P<privileges>.+?) ON (?:TABLE )?"
    r"(?P<scope>\*\.\*|(?:(?:PROCEDURE|FUNCTION|PACKAGE(?: BODY)?) )?`(?:[^`]|``)+`\.\S.*?) TO "
    r".*?(?: WITH (?:[A-Z_]+ \d+ )*(?P<option>GRANT\sOPTION).*)?$",
    re.DOTALL,
)
#: what in the name of a database a GRANT takes for a pattern
_PATTERN = re.compile(r"[\\_%]")
#: MariaDB prints what another name was given by
_OTHER_NAMES = {"REPLICA MONITOR": "SLAVE MONITOR", "BINLOG MONITOR": "REPLICATION CLIENT"}


def least_grants(flavor: str, user: str, host: str, databases: Sequence[str]) -> list[str]:
    """Statements for a server's administrator. `databases`: whose rows may be read; none: all.

    In the name of a database _ and % stand for any character and characters, so they are escaped. With MySQL's
    partial_revokes the server takes them, and what escapes them, as they are.

    >>> least_grants("mysql", "menura", "%", ["shop"])[1:]
    ["GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'menura'@'%';", "GRANT SELECT ON `shop`.* TO 'menura'@'%';"]
    """
    account = "@".join("'" + part.replace("'", "''") + "'" for part in (user, host))
    status = "BINLOG MONITOR" if flavor == "mariadb" else "REPLICATION CLIENT"
    lag = ["-- for a replica alone, so that dumps wait while it falls behind:"]
    lag += [f"GRANT REPLICA MONITOR ON *.* TO {account};"]
    scopes = [quoted_name(_PATTERN.sub(r"\\\g<0>", database)) + ".*" for database in databases] or [GLOBAL]
    patterns = [database for database in databases if flavor == "mysql" and _PATTERN.search(database)]
    literal = ["-- where @@partial_revokes is 1, in place of those with a backslash:"] if patterns else []
    literal += [f"--   GRANT SELECT ON {quoted_name(database)}.* TO {account};" for database in patterns]
    return [
        f"CREATE USER {account} IDENTIFIED BY '...';",
        f"GRANT REPLICATION SLAVE, {status} ON *.* TO {account};",
        *(f"GRANT SELECT ON {scope} TO {account};" for scope in scopes),
        *literal,
        *(lag if flavor == "mariadb" else []),
    ]


def privileges(lines: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Of SHOW GRANTS, by what they are on, as REVOKE calls them.

    >>> lines = "GRANT SELECT, BINLOG MONITOR ON *.* TO `m`@`%`", "GRANT SELECT (`a`), UPDATE ON `d`.`t` TO `m`"
    >>> found = privileges(lines)
    >>> sorted(found["*.*"]), sorted(found["`d`.`t`"])
    (['REPLICATION CLIENT', 'SELECT'], ['SELECT (`a`)', 'UPDATE'])
    >>> sorted(privileges(["GRANT EXECUTE ON PROCEDURE `d`.`p` TO `m`@`%` WITH GRANT OPTION"])["PROCEDURE `d`.`p`"])
    ['EXECUTE', 'GRANT OPTION']
    """
    found: dict[str, frozenset[str]] = {}
    for line in lines:
        match = _GRANT.match(line)
        if match is None:  # of a role, or PROXY
            continue
        words = [word.strip() for word in _split(match["privileges"])]
        names = {word if "(" in word else _OTHER_NAMES.get(word.upper(), word.upper()) for word in words}
        names |= {match["option"]} if match["option"] else set()
        found[match["scope"]] = found.get(match["scope"], frozenset()) | names
    return found


def _split(listed: str) -> list[str]:
    """At the commas between privileges, not at those between columns."""
    return re.split(r",(?![^(]*\))", listed)
