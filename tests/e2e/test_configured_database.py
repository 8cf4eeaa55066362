"""A database's agent that has enrolled with no source in its file, and gets one by `menura apply`."""

import subprocess
from pathlib import Path

import yaml

from tests.e2e.test_configured_sources import changes, fleet, shown, wait_until
from tests.e2e.test_identity import identified
from tests.e2e.test_tls import landed_rows
from tests.remedies import commands
from tests.servers import server
from tests.stack import MENURA, wait_for


def test_agent_when_it_has_enrolled_without_a_source_then_apply_gives_it_one_and_a_kill_and_a_bad_change_lose_nothing(
    tmp_path: Path,
) -> None:
    with server("mariadb", tmp_path / "server") as source, identified(tmp_path) as stack:
        source.create_replication_user()
        source.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        agent = stack.agent_of("db1", {})
        path = Path(agent.arguments[-1])
        config = yaml.safe_load(path.read_text())
        del config["sources"]
        path.write_text(yaml.safe_dump(config | {"remote": {}}))
        secrets = Path(config["state_folder"]) / "secrets"
        secrets.mkdir(parents=True)
        (secrets / "shop").write_text("menura-secret\n")

        def shop(password: object = None, **client: object) -> dict[str, object]:
            entries = {"host": source.host, "port": source.port, "user": "menura"} | client
            entries["password"] = password or {"file": "shop"}
            return {"shop": {"kind": "mysql", "client": entries, "tables": {"d.t": None}}}

        def named(sources: dict[str, object]) -> str:
            file = Path(fleet(tmp_path, sources))
            file.write_text(file.read_text().replace("db-1", "db1"))
            return str(file)

        def apply(sources: dict[str, object]) -> list[tuple[str, str]]:
            return changes(stack.command("apply", "-f", named(sources), "--json"))

        said = stack.command("apply", "-f", named(shop()))
        (create,) = [command for command in commands(said) if command[:2] == ["token", "create"]]
        token = stack.command(*create).split()[0]
        enrolling = ["agent", "enrol", "--config", str(path), "--enrol-port", str(stack.enrol_port), "--token", token]
        subprocess.run([*MENURA, *enrolling], check=True, capture_output=True)
        with agent:
            wait_for("the rows to land", lambda: landed_rows(stack.landing) == 2)
            assert apply(shop()) == []
            agent.kill()
            source.run("INSERT INTO d.t VALUES (3)")
            agent.start()
            wait_for("the row of meanwhile to land", lambda: landed_rows(stack.landing) == 3)
            for bad, code in (
                (shop(host="db9.example"), "CONFIG_ACCESS_REFUSED"),  # it may not dial that
                (shop({"file": "/etc/shadow"}), "CONFIG_ACCESS_REFUSED"),
                (shop({"file": "later"}), "CONFIG_INVALID"),  # not there yet
                (shop(user="nobody"), "SOURCE_ACCESS_DENIED"),  # the server refuses it
            ):
                assert apply(bad) == [("change", "shop")]
                wait_until(stack, "shop", "refused", code)
            assert shown(stack)["effective_generation"] == 1
            agent.kill()  # it begins again with the last good one
            agent.start()
            wait_until(stack, "shop", "refused", "SOURCE_ACCESS_DENIED")
            source.run("INSERT INTO d.t VALUES (4)")
            wait_for("the row to land", lambda: landed_rows(stack.landing) == 4)
            assert apply(shop({"file": "later"})) == [("change", "shop")]
            wait_until(stack, "shop", "refused", "CONFIG_INVALID")
            (secrets / "later").write_text("menura-secret")  # nobody has to apply it again
            wait_until(stack, "shop", "applied", "CONFIGURATION_APPLIED")
            source.run("INSERT INTO d.t VALUES (5)")
            wait_for("the row after the change to land", lambda: landed_rows(stack.landing) == 5)
            assert apply(shop()) == [("change", "shop")]
            wait_until(stack, "shop", "applied", "CONFIGURATION_APPLIED")
            assert apply(shop()) == []
            for log in (agent.log, stack.gateway.log, stack.api.log):
                assert "menura-secret" not in log.read_text() and "Traceback" not in log.read_text()
