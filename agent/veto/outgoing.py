"""A second look at each message before it leaves: whatever made it, it says nothing that the policy keeps back.

Comes in: a message to the gateway, whole, and the policy in force. Goes out: the message without what may not leave;
`Withheld`, where that would be all of it: rows, or bounds of keys, of a table that stays. Then the stream ends and
opens anew, and what is read for it is planned under the policy in force. What is taken out is logged, by its kind. Rows
are Arrow by now: which columns they have was decided by their plan, which no stream keeps beyond its end.

Errors of tables that a gateway has named itself pass; texts lose the names of tables and columns that the last look at
the server's tables saw stay.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import Message
from menura.change_batch import UNREPRESENTABLE, source_column
from menura.v1 import changes_pb2, config_pb2, error_pb2, snapshot_pb2
from menura.v1.stream_pb2 import StreamResponse

from agent.veto.local_policy import LocalPolicy, SourceVeto, Table, without_columns, without_foreign_keys

HIDDEN = "(kept back)"
_ERROR_TEXTS = ("doing", "found", "data", "remedy")
#: what is no table's own word stands between quotes, or is no plain word
_WORDS = re.compile(r"""(?P<quote>["'`]?)(?P<word>[^\W][\w$]*)(?P=quote)""")
_PLAIN = re.compile(r"[^\W\d_]+")


class Withheld(Exception):
    """The message may not leave."""


class OutgoingLook:
    def __init__(self, local: LocalPolicy) -> None:
        self._local = local

    def check(self, source: str, response: StreamResponse) -> None:
        """Raises `Withheld`. `source`: of the stream; empty: of the agent's own streams."""
        if not self._local.policy.keeps_back:
            return
        veto = self._local.of_source(source) if source else None
        match response.WhichOneof("payload"):
            case "effective_state":
                self._effective(response.effective_state)
            case "effective_sources":
                for one in response.effective_sources.sources:
                    self._error(one.source, one.error)
            case "heartbeat":
                for status in response.heartbeat.sources:
                    self._error(status.source, status.error)
            case payload if veto is not None and payload is not None:
                self._of_source(veto, source, response, payload)

    def _of_source(self, veto: SourceVeto, source: str, response: StreamResponse, payload: str) -> None:
        match payload:
            case "change_batch":
                _check_streamed(veto, response.change_batch.table)
            case "snapshot_batch":
                _check_table(veto, response.snapshot_batch.table)
            case "chunk_end":
                _check_table(veto, response.chunk_end.table)
                _check_digest(veto, response.chunk_end)
            case "cartography":
                _cartography(veto, response)
            case "cut_end":
                self._cut_end(veto, source, response.cut_end)
            case "dump_plan":
                _scrub(veto, response.dump_plan, ("warning",))
            case "dump_status":
                _scrub(veto, response.dump_status, ("reason",))
            case "dump_failed":
                self._error(source, response.dump_failed.error)
            case "error":
                self._error(source, response.error)

    def _effective(self, state: config_pb2.EffectiveState) -> None:
        self._error(state.source, state.error)
        for table in state.tables:
            self._error(state.source, table.error)
        veto = self._local.of_source(state.source)
        if veto is None:
            return
        told = [one for one in state.warnings if not one.table or veto.ruling(one.database, one.table).leaves]
        if len(told) != len(state.warnings):
            veto.took_out("warnings of tables")
            kept = [error_pb2.Error.FromString(one.SerializeToString()) for one in told]
            del state.warnings[:]
            state.warnings.extend(kept)
        for one in state.warnings:
            self._error(state.source, one)

    def _cut_end(self, veto: SourceVeto, source: str, end: changes_pb2.CutEnd) -> None:
        for started in end.started:
            _check_streamed(veto, started.table)
        for chunk in end.chunks:
            _check_table(veto, chunk.table)
        for stopped in end.stopped:  # a gateway has named them: that is how they come here
            self._error(source, stopped.error)
        for event in end.events:
            _event(veto, event)

    def _error(self, source: str, error: error_pb2.Error) -> None:
        veto = self._local.of_source(source)
        if veto is not None and error.code:
            _scrub(veto, error, _ERROR_TEXTS, named=(error.database, error.table))


def _check_table(veto: SourceVeto, table: config_pb2.TableName) -> None:
    if not veto.ruling(table.database, table.table).leaves:
        raise Withheld


def _check_streamed(veto: SourceVeto, table: config_pb2.TableName) -> None:
    """A denied partition that comes in the log stops its table there: what was before it leaves.

    Else the stream would open anew, and come to the same place, for ever.
    """
    if not veto.ruling_by_name((table.database, table.table)).leaves:
        raise Withheld


def _check_digest(veto: SourceVeto, end: snapshot_pb2.ChunkEnd) -> None:
    """A hash of few values is as good as the values."""
    columns = veto.ruling(end.table.database, end.table.table).columns
    named = [column.name for column in end.digest.columns if column.name != UNREPRESENTABLE]
    if any(columns.ignores(source_column(name)) for name in named):
        raise Withheld


def _cartography(veto: SourceVeto, response: StreamResponse) -> None:
    """The catalog leaves out what stays before it makes the digests; here is nothing left to take out."""
    part = response.cartography
    told = [card for card in part.tables if veto.ruling(card.table.database, card.table.table).leaves]
    if len(told) != len(part.tables):
        raise Withheld
    if any(without_columns(card, veto.ruling(card.table.database, card.table.table).columns) for card in told):
        raise Withheld

    def keeps(table: Table, column: str) -> bool:
        ruling = veto.ruling(*table)
        return not ruling.leaves or ruling.columns.ignores(column)

    if any(without_foreign_keys(card, keeps) for card in told):
        raise Withheld


def _event(veto: SourceVeto, event: changes_pb2.TableEvent) -> None:
    _check_streamed(veto, event.table)
    ruling = veto.ruling_by_name((event.table.database, event.table.table))
    _scrub(veto, event, ("statement", "unlogged_changes"))
    if event.HasField("new_name") and not veto.ruling(event.new_name.database, event.new_name.table).leaves:
        veto.took_out("a table's new name")
        event.ClearField("new_name")
    columns = [one for one in event.columns if not ruling.columns.ignores(one.name)]
    _keep(veto, event.columns, columns, "columns of an event")
    for one in event.columns:
        if one.renamed_from and ruling.columns.ignores(one.renamed_from):
            veto.took_out("a column's former name")
            one.renamed_from = ""
    _keep(veto, event.foreign_keys, [key for key in event.foreign_keys if _may_tell(veto, event, key)], "foreign keys")


def _may_tell(veto: SourceVeto, event: changes_pb2.TableEvent, key: changes_pb2.ForeignKey) -> bool:
    child = veto.ruling_by_name((event.table.database, event.table.table))
    parent = veto.ruling(key.parent.database, key.parent.table)
    hidden = any(map(child.columns.ignores, key.columns)) or any(map(parent.columns.ignores, key.parent_columns))
    return parent.leaves and not hidden


def _keep(veto: SourceVeto, field: Any, kept: list[Any], what: str) -> None:  # noqa: ANN401  (a repeated field of messages)
    if len(kept) != len(field):
        veto.took_out(what)
        copies = [type(one).FromString(one.SerializeToString()) for one in kept]
        del field[:]
        field.extend(copies)


def _scrub(veto: SourceVeto, message: Message, texts: Iterable[str], named: Table = ("", "")) -> None:
    """`named`: a table that a gateway has named itself."""
    hidden = {table: columns for table, columns in veto.hidden.items() if columns or table != named}
    for name in texts:
        text = getattr(message, name)
        if text and (told := scrubbed(text, hidden)) != text:
            veto.took_out(f"names in {name}")
            setattr(message, name, told)


def scrubbed(text: str, hidden: Mapping[Table, frozenset[str]]) -> str:
    """The text without names of tables and columns that stay; a plain word only in quotes, or behind a database's.

    >>> seen = {("hr", "salaries"): frozenset(), ("shop", "orders"): frozenset({"card_no"})}
    >>> scrubbed("Table 'hr.salaries' is full: `salaries` of hr.salaries; pay salaries by card_no", seen)
    "Table '(kept back)' is full: (kept back) of (kept back); pay salaries by (kept back)"
    """
    tables = {table for table, columns in hidden.items() if not columns}
    for database, table in _speaking(tables, text):
        first, second = re.escape(database), re.escape(table)
        qualified = rf"(?<![\w$]){first}\.{second}(?![\w$])|([\"'`]){first}\1\.\1{second}\1"
        text = re.sub(qualified, HIDDEN, text, flags=re.IGNORECASE)
    names = {name.casefold() for _, name in tables} | {
        column.casefold() for columns in hidden.values() for column in columns
    }

    def shown(found: re.Match[str]) -> str:
        is_name = found["quote"] or _PLAIN.fullmatch(found["word"]) is None
        return HIDDEN if is_name and found["word"].casefold() in names else found[0]

    return _WORDS.sub(shown, text)


def _speaking(tables: Iterable[Table], text: str) -> Iterator[Table]:
    folded = text.casefold()
    return (table for table in tables if table[1].casefold() in folded)
