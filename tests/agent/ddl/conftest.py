import pytest

from tests.agent.ddl.tracking import tracking
from tests.servers import server

#: what a crash would lose does not matter here
_FAST = {"binlog_row_metadata": "MINIMAL", "innodb_flush_log_at_trx_commit": "0", "innodb_doublewrite": "0"}


@pytest.fixture(scope="package")
def both(tmp_path_factory):
    """Each server's `Tracking`, by its name."""
    folder = tmp_path_factory.mktemp("ddl")
    with (
        server("mysql", folder / "mysql", **_FAST) as mysql,
        server("mariadb", folder / "mariadb", **_FAST) as mariadb,
        tracking(mysql) as of_mysql,
        tracking(mariadb) as of_mariadb,
    ):
        yield {"mysql": of_mysql, "mariadb": of_mariadb}
