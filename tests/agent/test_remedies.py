"""What messages about a source say is to be done: statements and settings are taken from them, word for word.

Each ends with an agent that streams the table, equal to its source. Commands of the control plane are run by
tests/e2e/test_remedies.py.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
import yaml
from menura.v1 import config_pb2

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import agent, client, running_agent, write_config
from tests.agent.test_replication import ORDERS, change, last_state, prepare, wait_equal
from tests.servers import FLAVORS, Flavor, Server, server

STATEMENT = re.compile(
    r"SET GLOBAL [a-z_]+ = '\w*'|GRANT [A-Z ,]+ ON \S+ TO '\w+'@'\S+'|ALTER USER '\w+'@'\S+' IDENTIFIED BY '\S+'"
)
SETTING = re.compile(r"\bsources\.shop\.[\w.]*\w")
MY_CNF = re.compile(r"\b(\w+)=(\w+) to \[mysqld\] in my\.cnf")


class Source:
    """An agent's configuration that is mended by what messages say."""

    def __init__(self, folder: Path, gateway: GatewayDouble, database: Server, **source: Any) -> None:
        self.folder, self.gateway, self.database = folder, gateway, database
        self.facts: dict[str, Any] = {"client": client(database), **source}

    def path(self) -> Path:
        return write_config(self.folder, self.gateway.address, {"shop": self.facts})

    def refused(self, code: str) -> str:
        """What `menura agent check` says."""
        done = agent("check", self.path())
        assert code in done.stdout, done.stdout + done.stderr
        return done.stdout

    def set(self, setting: str, value: object) -> None:
        """`sources.shop.A.B`, where a key of the filter may have a dot; None takes it out."""
        found, parts = self.facts, setting.split(".")[2:]
        while len(parts) > 1 and isinstance(found.get(parts[0]), dict):
            found = found[parts.pop(0)]
        if value is None:
            del found[".".join(parts)]
        else:
            found[".".join(parts)] = value

    def works(self) -> None:
        """Its table streams, with all of its rows."""
        assert agent("check", self.path()).returncode == 0
        self.gateway.sync("shop", ORDERS, oldest=True)
        with running_agent(self.path(), self.folder / "log"):
            change(self.database, rounds=1)
            wait_equal(self.gateway, self.database, ORDERS)
        self.gateway.wait_gone("shop")


def state_of(gateway: GatewayDouble) -> int:
    state = last_state(gateway, ORDERS)
    return 0 if state is None else state.state


def only(found: list[str]) -> str:
    assert len(set(found)) == 1, found
    return found[0]


def test_grants_when_they_are_missing_then_the_statements_of_the_messages_give_them_before_and_while_it_runs(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run("CREATE USER 'bare'@'%' IDENTIFIED BY 'bare-secret'")
    source = Source(tmp_path, gateway, database, client=client(database, user="bare", password="bare-secret"))
    given: list[str] = []
    while (checked := agent("check", source.path())).returncode:
        assert "SOURCE_GRANT_MISSING" in checked.stdout
        given.append(only(STATEMENT.findall(checked.stdout)))
        assert len(given) <= 3, given
        database.run(given[-1])
    assert len(set(given)) == 3
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with running_agent(source.path(), tmp_path / "log"):
        gateway.wait(lambda: state_of(gateway) == config_pb2.TableState.STREAMING)
        database.run("REVOKE REPLICATION SLAVE ON *.* FROM 'bare'@'%'")
        for (session,) in database.run("SELECT id FROM information_schema.processlist WHERE user = 'bare'"):
            with suppress(pymysql.err.OperationalError):  # it has ended by itself
                database.run(f"KILL {session}")
        gateway.wait(lambda: record.effective[-1].error.code == "SOURCE_GRANT_MISSING")
        database.run(only(STATEMENT.findall(record.effective[-1].error.remedy)))
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        gateway.wait(lambda: not record.effective[-1].HasField("error"))


def test_login_when_it_is_refused_then_the_statement_of_the_message_lets_it_in(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    source = Source(tmp_path, gateway, database, client=client(database, password="another-secret"))
    statement = only(STATEMENT.findall(source.refused("SOURCE_ACCESS_DENIED")))
    database.run(statement.replace("'...'", "'another-secret'"))
    source.works()


def test_address_when_nobody_is_there_then_the_settings_of_the_message_are_those_to_correct(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    source = Source(tmp_path, gateway, database, client=client(database, port=1))
    message = source.refused("SOURCE_UNREACHABLE")
    assert "sources.shop.client.host and port" in message
    source.set(only(SETTING.findall(message)).replace(".host", ".port"), database.port)
    source.works()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_log_when_it_is_off_or_not_of_rows_then_the_lines_and_statements_of_the_messages_mend_it(
    flavor: Flavor, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server(flavor, tmp_path / "server", skip_log_bin="", binlog_format="MIXED") as database:
        prepare(database)
        source = Source(tmp_path, gateway, database)
        ((name, value),) = MY_CNF.findall(source.refused("BINLOG_DISABLED"))
        database.stop()
        database.settings = {"binlog_format": "MIXED", name: value}
        database.start()
        message = source.refused("BINLOG_FORMAT_NOT_ROW")
        database.run(only(STATEMENT.findall(message)))
        assert MY_CNF.findall(message) == [("binlog_format", "ROW")]
        source.facts["client"] = client(database)
        gateway.sync("shop", ORDERS, now=True)
        with running_agent(source.path(), tmp_path / "log"):
            gateway.wait(lambda: gateway.source("shop").committed)
            change(database, rounds=1)
            wait_equal(gateway, database, ORDERS)


def test_json_when_it_is_logged_in_parts_then_either_statement_of_the_message_mends_it(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mysql", tmp_path / "server", binlog_row_image="MINIMAL") as database:
        prepare(database)
        source = Source(tmp_path, gateway, database)
        for chosen in (0, 1):
            database.run(
                "SET GLOBAL binlog_row_image = 'MINIMAL'", "SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'"
            )
            statements = STATEMENT.findall(source.refused("BINLOG_ROW_VALUE_PARTIAL"))
            assert len(statements) == 2
            database.run(statements[chosen])
            assert agent("check", source.path()).returncode == 0
        database.run("SET GLOBAL binlog_row_image = 'FULL'")
        source.works()


def test_filter_when_it_does_not_fit_then_what_the_messages_name_is_what_to_change(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    wrong = {"ordres": None, "shop.items": {"ignored_columns": ["nota"]}, "shop.orders": {"ignored_columns": ["id"]}}
    source = Source(tmp_path, gateway, database, filter=wrong)
    line = {code: next(each for each in source.refused(code).splitlines() if code in each) for code in (
        "FILTER_TABLE_UNKNOWN", "FILTER_COLUMN_UNKNOWN", "FILTER_COLUMN_IS_KEY")}  # fmt: skip
    assert "Correct or remove sources.shop.filter.ordres," in line["FILTER_TABLE_UNKNOWN"]
    source.set("sources.shop.filter.ordres", None)
    for code, setting in (("FILTER_COLUMN_UNKNOWN", "items"), ("FILTER_COLUMN_IS_KEY", "orders")):
        named = only(SETTING.findall(line[code]))
        assert named == f"sources.shop.filter.shop.{setting}.ignored_columns"
        assert f"menura sync resync shop shop.{setting}" in line[code]
        source.set(named.removesuffix(".ignored_columns"), {"ignored_columns": ["note"]})
    assert "warning" not in source.refused("shop: ok")
    source.set("sources.shop.filter.shop.orders", {"ignored_columns": []})
    source.works()


def test_table_when_the_filter_drops_it_then_the_setting_of_the_message_lets_it_through(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    source = Source(tmp_path, gateway, database, filter_policy="drop", filter={"items": {}})
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(source.path(), tmp_path / "log"):
        gateway.wait(lambda: state_of(gateway) == config_pb2.TableState.DENIED)
        state = last_state(gateway, ORDERS)
    assert state is not None
    assert state.error.code == "TABLE_DENIED"
    source.set(f"{only(SETTING.findall(state.error.remedy))}.orders", {})
    gateway.wait_gone("shop")
    source.works()


def test_server_id_when_the_server_has_it_then_the_setting_of_the_message_is_the_one_to_change(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    source = Source(tmp_path, gateway, database, server_id=1)
    source.set(only(SETTING.findall(source.refused("SERVER_ID_DUPLICATE"))), 4711)
    source.works()


def test_tls_when_it_can_not_be_verified_then_the_setting_of_the_message_verifies_it(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mysql", tmp_path / "server") as database:
        prepare(database)
        (tmp_path / "none.pem").write_text("no certificate")
        tls = {"mode": "verify_ca", "ca": str(tmp_path / "none.pem")}
        source = Source(tmp_path, gateway, database, client=client(database, tls=tls))
        assert "Give PEM files in sources.shop.client.tls: ca, certificate and key" in source.refused("TLS_FAILED")
        assert database.folder is not None
        # of the clients: signed by the same CA, which is not itself
        source.set("sources.shop.client.tls", {**tls, "ca": str(database.folder / "data" / "client-cert.pem")})
        message = source.refused("SOURCE_TLS_FAILED")
        setting, value = re.findall(r"(sources\.shop\.client\.tls): (\{.*?\})", message)[0]
        source.set(setting, {**yaml.safe_load(value), "ca": str(database.folder / "data" / "ca.pem")})
        source.works()
