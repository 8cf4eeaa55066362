"""`python -m tests.golden`: run each .sql on its server and keep the log's bytes and the rows."""

import json
import tempfile
from pathlib import Path

from tests.agent.native.capture import logged
from tests.golden import FOLDER, names
from tests.servers import Flavor, server


def main() -> None:
    for name in names():
        flavor: Flavor = "mariadb" if name.startswith("mariadb") else "mysql"
        statements = [text.strip() for text in (FOLDER / f"{name}.sql").read_text(encoding="utf-8").split(";\n")]
        with tempfile.TemporaryDirectory() as folder, server(flavor, Path(folder) / "server") as running:
            running.run("CREATE DATABASE t CHARACTER SET utf8mb4")
            data = logged(running, *[text for text in statements if text])
            columns = running.run(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 't' ORDER BY ordinal_position"
            )
            chosen = ", ".join(f"CAST(`{column}` AS CHAR)" for (column,) in columns)
            rows = running.run("SET time_zone = '+00:00'", f"SELECT {chosen} FROM t.golden ORDER BY id")
        document = [{str(column): value for (column,), value in zip(columns, row, strict=True)} for row in rows]
        (FOLDER / f"{name}.binlog").write_bytes(data)
        text = json.dumps(document, ensure_ascii=False, indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
