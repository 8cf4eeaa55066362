"""Where in the lake a table's two Delta tables are: given once, before its first row, and the same for ever.

Comes in: tables that are new, rules for their folders. Goes out: a folder of each, durable in `_menura/tables`, or why
it has none. By default that is TENANT/SOURCE/DATABASE/TABLE. No folder by a rule is another table's, lies in one or
holds one, also where case is no difference, and none holds files that nobody knows. A table stays where it is, whatever
rules say later.

`_menura/tables` has one row per table that the sink has written or tried to write, or more. Its column `folder`, below
the lake, is there once a rule has been; null: the default one, '': none yet. A table's first row counts without '' and
without a folder that an earlier row gave another table: two sinks may have written at once, of which one reads after
its append that it has lost.

Who reads the lake asks the record (`table_folder`). The sink's processes are told instead: one look costs what a small
table does, and they open many.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

import pyarrow as pa
from deltalake import DeltaTable
from menura.views.definition import VIEW_SOURCE

from spark_sink.errors import LakeRecordsUnwritable
from spark_sink.lake.delta_table import open_table, quoted, scan, schema_of
from spark_sink.lake.folder_rules import DEFAULT_FOLDERS, FolderRules
from spark_sink.lake.record_rows import FOLDER, NUMBER, append_rows, number_of, table_facts
from spark_sink.landed.storage import open_storage
from spark_sink.work import CHANGELOG, CURRENT, TableId

TABLE = ("tenant", "source", "database", "table")
#: of the record, and with folders
TABLES_SCHEMA = pa.schema([*((name, pa.string()) for name in TABLE), (NUMBER, pa.int64())])
FOLDERS_SCHEMA = TABLES_SCHEMA.append(pa.field("folder", pa.string()))
#: of tables whose rule says otherwise, so many are named
MOST_TOLD = 5

#: folders below the lake, by table
Folders = Mapping[TableId, str]

logger = logging.getLogger("menura.sink")

#: a lake, and the folders of all of its tables that are not where they are by default, or more
_told: tuple[str, Folders] | None = None


def table_folder(lake: str, table: TableId) -> str:
    """Holds `changelog` and `current`. OSError, DeltaError where the record can't be read."""
    return f"{lake}/{folders_by_rule(lake).get(table, table.default_folder)}"


def folders_by_rule(lake: str) -> Folders:
    """Of all tables that are not where they are by default."""
    if _told is not None and _told[0] == lake:
        return _told[1]
    record = open_table(_record(lake))
    has_folders = record is not None and "folder" in schema_of(record).names
    return {table: folder for table, folder in _recorded(record).items() if folder} if has_folders else {}


def tell_folders(lake: str, folders: Folders) -> None:
    """From now on this process knows them, and does not look."""
    global _told  # noqa: PLW0603  (of a process, as storage options are)
    _told = lake, folders


@contextmanager
def told_folders(lake: str, folders: Folders) -> Iterator[None]:
    """The same for a while."""
    global _told  # noqa: PLW0603
    before = _told
    tell_folders(lake, folders)
    try:
        yield
    finally:
        _told = before


def _record(lake: str) -> str:
    return f"{lake}/{FOLDER}/tables"


def _recorded(record: DeltaTable | None) -> dict[TableId, str]:
    """Folders of all tables in the record; '' of those that have none yet."""
    if record is None:
        return {}
    folder = "folder" if "folder" in schema_of(record).names else "CAST(NULL AS VARCHAR)"
    chosen = ", ".join(map(quoted, TABLE))
    query = f"SELECT {chosen}, {folder} AS folder FROM t ORDER BY {number_of(record)}"  # noqa: S608  (constants)
    found: dict[TableId, str] = {}
    given: dict[str, TableId] = {}
    for row in scan(record, query).read_all().to_pylist():
        table = TableId(*(row[name] for name in TABLE))
        said = table.default_folder if row["folder"] is None else row["folder"]
        owner = given.get(said.lower(), table)
        is_another = owner != table and (said != table.default_folder or found[owner] != owner.default_folder)
        found[table] = found.get(table) or ("" if is_another else said)
        if found[table]:
            given.setdefault(found[table].lower(), table)
    return found


def listed_tables(records: DeltaTable | None) -> list[TableId]:
    if records is None:
        return []
    chosen = ", ".join(map(quoted, TABLE))
    query = f'SELECT DISTINCT {chosen} FROM t WHERE "table" IS NOT NULL'  # noqa: S608  (constants)
    rows = scan(records, query).read_all().to_pylist()
    return sorted(TableId(*(row[name] for name in TABLE)) for row in rows)


class TableFolders:
    """The record of a lake, for its sink. `cuts`: what else tells the tables of a lake of an earlier version."""

    def __init__(
        self,
        lake: str,
        cuts: str,
        rules: FolderRules = DEFAULT_FOLDERS,
        check_owned: Callable[[], object] = lambda: None,
    ) -> None:
        """`check_owned` raises a `SinkError` where another sink has the lake."""
        self._lake = lake
        self._cuts = cuts
        self._rules = rules
        self._check_owned = check_owned
        self._held: dict[TableId, str] | None = None
        self._is_by_rule = bool(rules.rules)

    def tables(self) -> list[TableId]:
        """All that were ever recorded."""
        return listed_tables(open_table(_record(self._lake)) or open_table(self._cuts))

    def begin(self) -> None:
        """Read the record anew, and have this process know it."""
        self._held = None
        held = self._known()
        self._tell()
        if self._rules.rules:
            others = [f"{table} in {folder}" for table, folder in held.items() if self._differs(table, folder)]
            if others:
                said = "tables stay where they are, not where --table-folders says tables=%d e.g. %s"
                logger.warning(said, len(others), ", ".join(others[:MOST_TOLD]))

    def _differs(self, table: TableId, folder: str) -> bool:
        if not folder or table.source == VIEW_SOURCE:
            return False
        try:
            return self._rules.folder_of(table) != folder
        except ValueError:
            return True

    @property
    def of_tasks(self) -> Folders | None:
        """Of all tables that have one; None: each one's is the default, also that of new tables."""
        held = self._known()
        return {table: folder for table, folder in held.items() if folder} if self._is_by_rule else None

    def _known(self) -> dict[TableId, str]:
        if self._held is None:
            self._held = _recorded(open_table(_record(self._lake)))
            if not self._held:  # a lake of an earlier version, or a new one
                self._held = {table: table.default_folder for table in listed_tables(open_table(self._cuts))}
                self._append(self._held)
            by_rule = (folder != table.default_folder for table, folder in self._held.items())
            self._is_by_rule = bool(self._rules.rules) or any(by_rule)
        return self._held

    def _tell(self) -> None:
        tell_folders(self._lake, self.of_tasks or {})

    def note(self, tables: Collection[TableId], stopped: Collection[TableId] = ()) -> None:
        """Before anything is recorded of them: those that are not known have their folders by default.

        Where folders go by rules, those of them that have `stopped` before they were given one have none yet.
        """
        held = self._known()
        undecided = frozenset(stopped if self._is_by_rule else ())
        unknown = (table for table in sorted(tables) if table not in held)
        new = {table: "" if table in undecided else table.default_folder for table in unknown}
        self._append(new)
        held.update(new)

    def assign(self, tables: Collection[TableId]) -> dict[TableId, str]:
        """Give a folder to each that has none, durably; says of the others why they get none.

        Raises what `check_owned` raises, and `LakeRecordsUnwritable` where another sink was first.
        """
        self._check_owned()
        held = self._known()
        taken = _Taken(held)
        new: dict[TableId, str] = {}
        refused: dict[TableId, str] = {}
        for table in sorted(table for table in tables if not held.get(table)):
            try:
                folder = self._wanted(table)
                taken.take(table, folder)
                self._check_empty(table, folder)
                new[table] = folder
            except ValueError as why:
                refused[table] = str(why)
        self._append({**new, **{table: "" for table in refused if table not in held}})
        self._confirm(new)
        held.update({**dict.fromkeys(refused, ""), **new})
        self._tell()
        return refused

    def _confirm(self, given: Folders) -> None:
        """The record has them, and none that another sink has written since it was read."""
        found = _recorded(open_table(_record(self._lake))) if given else {}
        others = [f"{table} in {found[table] or 'none'}" for table, folder in given.items() if found[table] != folder]
        if others:
            self._held = None
            self._check_owned()
            raise LakeRecordsUnwritable(
                f"giving new tables their folders in the lake {self._lake}",
                f"another sink has given folders meanwhile: {', '.join(others[:MOST_TOLD])}",
                data="Nothing of these tables was written",
                remedy="Start this sink again, and let one sink alone run for a lake: it goes on with what is recorded",
            )

    def _wanted(self, table: TableId) -> str:
        """Raises ValueError where it can't have it."""
        default = table.default_folder
        if any(open_table(f"{self._lake}/{default}/{kind}") is not None for kind in (CHANGELOG, CURRENT)):
            return default  # written by a sink that was killed before it had recorded the table
        return self._rules.folder_of(table)

    def _check_empty(self, table: TableId, folder: str) -> None:
        """Raises ValueError."""
        if folder != table.default_folder and next(iter(open_storage(self._lake).list(folder)), None) is not None:
            raise ValueError(f"the folder {folder}, which it is to have, holds files that no table of this lake has")

    def _append(self, folders: Folders) -> None:
        """Without the column as long as all are the default ones: then nobody who reads has to look for rows."""
        said = {table: folder if folder != table.default_folder else None for table, folder in folders.items()}
        rows = [{**table_facts(table), "folder": folder} for table, folder in said.items()]
        schema = FOLDERS_SCHEMA if any(folder is not None for folder in said.values()) else TABLES_SCHEMA
        append_rows(_record(self._lake), rows, schema)


class _Taken:
    """Which folders are given, and which ones hold these; in small letters."""

    def __init__(self, held: Folders) -> None:
        self._folders: dict[str, TableId] = {}
        self._above: dict[str, TableId] = {}
        self._by_rule: set[TableId] = set()
        for table, folder in held.items():
            if folder:
                self._put(table, folder)

    def take(self, table: TableId, folder: str) -> None:
        """Raises ValueError where it is another one's. Those by default never meet, but may differ by case alone."""
        name = folder.lower()
        *above, _ = accumulate(name.split("/"), "{}/{}".format)
        found = [self._folders.get(name), self._above.get(name), *map(self._folders.get, above)]
        is_by_rule = folder != table.default_folder
        other = next((each for each in found if each is not None and (is_by_rule or each in self._by_rule)), None)
        if other is not None:
            raise ValueError(f"the folder {folder}, which it is to have, is that of {other}, lies in it or holds it")
        self._put(table, folder)

    def _put(self, table: TableId, folder: str) -> None:
        *above, name = accumulate(folder.lower().split("/"), "{}/{}".format)
        self._folders[name] = table
        self._above.update(dict.fromkeys(above, table))
        if folder != table.default_folder:
            self._by_rule.add(table)
