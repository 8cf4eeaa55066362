"""What a table looked like at one position, and how the schema history writes that down.

Pure. Comes in: versions and positions, or the texts that were kept of them. Goes out: the other.
"""

import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from agent.sources.mysql.ddl.model import ColumnDefinition, Default, KeyDefinition, TableDefinition
from agent.sources.mysql.positions import BinlogPosition, Gtids, MariadbGtids, MysqlGtids
from agent.sources.mysql.types import ColumnType, Kind


class RecordUnreadable(Exception):
    """A text is none that was kept; says why."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The table is not there."""

    #: an online schema change has given it this name, until its copy takes its place
    put_aside: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody knows what the table looks like, nor whether it is there."""

    #: completes "its definition is not known, because ..."
    why: str


#: of a table, at one position
Version = TableDefinition | Gone | Unknown

NEVER_SEEN = Unknown("its definition was never read")


def position_text(position: BinlogPosition) -> str:
    """{"scheme", "gtid_set", "server_uuid", "file", "offset"}"""
    facts = {
        "scheme": "" if position.gtids is None else type(position.gtids).__name__,
        "gtid_set": str(position.gtids or ""),
        "server_uuid": position.server_uuid,
        "file": position.file,
        "offset": position.offset,
    }
    return json.dumps(facts)


def position_of(text: str) -> BinlogPosition:
    """The same backwards; raises `RecordUnreadable`."""
    try:
        facts = json.loads(text)
        gtids: Gtids | None = None
        if facts["scheme"] == MysqlGtids.__name__:
            gtids = MysqlGtids.parse(facts["gtid_set"])
        elif facts["scheme"] == MariadbGtids.__name__:
            gtids = MariadbGtids.parse(facts["gtid_set"])
        return BinlogPosition(gtids, str(facts["server_uuid"]), str(facts["file"]), int(facts["offset"]))
    except (ValueError, TypeError, KeyError) as broken:
        raise RecordUnreadable(f"a position that can't be read ({type(broken).__name__})") from broken


def encoded(version: Version) -> tuple[str, str]:
    """State, and the definition as JSON or why it is not known."""
    if isinstance(version, Unknown):
        return "unknown", version.why
    if isinstance(version, Gone):
        return "gone", version.put_aside
    # Escaped: the bytes of an invalid label are lone surrogates (`types.invalid_label`), which SQLite does not take.
    return "known", json.dumps(_plain(version), separators=(",", ":"))


def decoded(state: str, text: str) -> Version:
    """The same backwards; raises `RecordUnreadable`."""
    if state == "unknown":
        return Unknown(text)
    if state == "gone":
        return Gone(text)
    try:
        facts = json.loads(text)
        columns = tuple(_column(column) for column in facts.pop("columns"))
        primary_key = tuple(facts.pop("primary_key", ()))
        keys = tuple(map(_key, facts.pop("keys", ())))
        return TableDefinition(columns, primary_key, keys=keys, **facts)
    except (ValueError, TypeError, KeyError, AttributeError) as broken:
        raise RecordUnreadable(f"a definition that can't be read ({type(broken).__name__})") from broken


def _column(facts: dict[str, Any]) -> ColumnDefinition:
    type_ = facts.pop("type")
    labels = tuple(type_.pop("labels", ()))
    column_type = ColumnType(Kind(type_.pop("kind")), labels=labels, **type_)
    reads = facts.pop("reads", None)
    default = Default(facts.pop("default", Default.NULL))
    return ColumnDefinition(type=column_type, default=default, reads=None if reads is None else tuple(reads), **facts)


def _key(facts: dict[str, Any]) -> KeyDefinition:
    parts = tuple((str(name), int(length)) for name, length in facts.pop("parts"))
    return KeyDefinition(parts=parts, **facts)


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A dataclass as JSON's values, without what is as it always is."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    given = {
        entry.name: getattr(value, entry.name) for entry in fields(value) if getattr(value, entry.name) != entry.default
    }
    return {name: _plain(member) for name, member in given.items()}
