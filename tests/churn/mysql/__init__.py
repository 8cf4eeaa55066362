"""MySQL and MariaDB under `make churn`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pymysql

from tests.churn.kind import Kind
from tests.churn.mysql import changes
from tests.churn.mysql.statements import STEPS
from tests.churn.mysql.tables import ASIDE, TABLES
from tests.conformance.stops import MYSQL_STOPS
from tests.live_source import LiveSource, mysql_source
from tests.servers import Flavor

_MINIMAL = {"binlog_row_metadata": "MINIMAL"}
_VERSIONED = frozenset({"versioned"})


def _server(flavor: Flavor, release: str = "", **settings: str) -> Callable[[Path], AbstractContextManager[LiveSource]]:
    return lambda folder: mysql_source(flavor, folder, "churn", release=release, **settings)


MYSQL = Kind(
    servers={
        "mariadb": _server("mariadb"),
        "mariadb-11.8": _server("mariadb", "11.8"),
        "mysql": _server("mysql"),
        # the engine carries foreign keys' actions out and logs none of them, as MySQL does up to 9.5
        "mysql-native-keys": _server("mysql", innodb_native_foreign_keys="ON"),
        "mariadb-minimal": _server("mariadb", **_MINIMAL),
        "mysql-minimal": _server("mysql", **_MINIMAL),
    },
    tables=TABLES,
    before={},
    behind=ASIDE,
    marker="id BIGINT AUTO_INCREMENT PRIMARY KEY",
    steps=STEPS,
    session=changes.MysqlSession,
    transaction=changes.transaction,
    errors=pymysql.err.MySQLError,
    is_meeting=changes.is_meeting,
    is_locked=changes.is_locked,
    is_lost=changes.is_lost,
    quoted=changes.quoted,
    stops=MYSQL_STOPS,
    lacking=dict.fromkeys(("mysql", "mysql-native-keys", "mysql-minimal"), _VERSIONED),
)
