"""Each state of a table has a reason of a closed set, with words and commands; none is invented."""

import importlib
import pkgutil
from itertools import product

import pytest
from menura import cli
from menura.errors import MenuraError

from agent import sources
from agent.errors import (
    DumpError,
    PositionInvalid,
    PositionPurged,
    SourceDiverged,
    SourceRebuilt,
    TableColumnUnsupported,
    TableDenied,
    TableError,
    TableRowsUncertain,
    TableRowsUnlogged,
    TableRowUnreadable,
    TableSchemaMismatch,
    TableStatementLogged,
)
from agent.sources.postgresql.errors import SlotInvalidated, TableUnpublished
from controlplane_api.api.table_reason_words import WORDS, words_of
from controlplane_api.api.table_reasons import SourceFacts, TableFacts, TableReason, reason_of
from controlplane_api.states import DumpHeld, DumpState, Stage, StartKind, State, StoppedBy
from gateway.errors import LandingFailed
from tests.controlplane_api.commands import menura
from tests.remedies import commands
from tests.servers import ROOT

R = TableReason
TOLD = SourceFacts(told_generation=5)


def of(state: State, source: SourceFacts = TOLD, own: State | None = None, **facts: object) -> TableReason:
    return reason_of(TableFacts(state=state, own=own or state, **facts), source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (of(State.NOT_SYNCED), R.NEVER_STARTED),
        (of(State.NOT_SYNCED, denied=True), R.DENIED_BY_POLICY),
        (of(State.DENIED), R.DENIED_BY_POLICY),
        (of(State.PENDING, denied=True), R.DENIED_BY_POLICY),
        (of(State.STREAMING, gone=True), R.GONE_FROM_SERVER),
        (of(State.STOPPED, stopped_by=StoppedBy.USER), R.STOPPED_BY_USER),
        (of(State.STOPPED, stopped_by=StoppedBy.USER, gone=True), R.STOPPED_BY_USER),
        (of(State.STOPPED, stopped_by=StoppedBy.FLEET_FILE), R.STOPPED_BY_FLEET_FILE),
        (of(State.STOPPED, stopped_by=StoppedBy.CONFIGURATION), R.STOPPED_WITH_CONFIGURATION),
        (of(State.STOPPED, code="DESIRED_STATE_LOST"), R.DESIRED_STATE_LOST),
        (of(State.FAILED, failed=True, code="EVENT_UNKNOWN"), R.STOPPED_BY_AGENT),
        (of(State.FAILED, failed=True, code="REREAD_LIMIT"), R.STOPPED_BY_POLICY),
        (of(State.FAILED, code="EVENT_UNKNOWN"), R.STOPPED_BY_AGENT),
        (of(State.FAILED, failed=True, code=TableRowsUnlogged.code), R.STOPPED_BY_UNLOGGED_POLICY),
        (of(State.FAILED, code=TableRowsUnlogged.code), R.STOPPED_BY_UNLOGGED_POLICY),
        (of(State.FAILED, failed=True, code=PositionPurged.code), R.STOPPED_AT_GAP),
        (of(State.FAILED, failed=True, code=SlotInvalidated.code), R.STOPPED_AT_GAP),
        (of(State.FAILED, failed=True, code=SourceDiverged.code), R.STOPPED_AT_OTHER_SERVER),
        (of(State.FAILED, failed=True, code=PositionInvalid.code), R.STOPPED_AT_POSITION),
        (of(State.FAILED, failed=True, code=TableDenied.code), R.STOPPED_BY_FILTER),
        (of(State.FAILED, failed=True, code=TableSchemaMismatch.code), R.STOPPED_AT_DEFINITION),
        (of(State.FAILED, failed=True, code=TableColumnUnsupported.code), R.STOPPED_AT_COLUMN_TYPE),
        (of(State.FAILED, failed=True, code=TableRowUnreadable.code), R.STOPPED_AT_ROW),
        (of(State.FAILED, failed=True, code=TableStatementLogged.code), R.STOPPED_AT_STATEMENT),
        (of(State.FAILED, failed=True, code=TableRowsUncertain.code), R.STOPPED_AT_UNCERTAIN_ROWS),
        (of(State.FAILED, failed=True, code=TableUnpublished.code), R.STOPPED_NOT_LOGGED),
        (of(State.FAILED, SourceFacts(State.FAILED, Stage.GATEWAY), State.STREAMING), R.STOPPED_BY_GATEWAY),
        (of(State.FAILED, SourceFacts(State.FAILED, Stage.LAKE), State.STREAMING), R.SINK_STOPPED),
        (of(State.FAILED, own=State.STREAMING), R.STOPPED_BY_SINK),
        (of(State.FAILED, SourceFacts(State.CATCHING_UP, Stage.LAKE), State.STREAMING), R.STOPPED_BY_SINK),
        (of(State.WAITING, SourceFacts(State.CATCHING_UP, Stage.LAKE), code="X"), R.SOURCE_UNREADABLE),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "AGENT_AWAY")), R.AGENT_AWAY),
        (
            of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "AGENT_AWAY", has_agent=False)),
            R.SOURCE_WITHOUT_AGENT,
        ),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "AGENT_AWAY", is_revoked=True)), R.AGENT_REVOKED),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "AGENT_AWAY", upgrades=True)), R.AGENT_UPGRADING),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "CONFIGURATION_PENDING")), R.CONFIGURATION_PENDING),
        (
            of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "X", configuration_refused=True)),
            R.CONFIGURATION_REFUSED,
        ),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "X", other_server=True)), R.OTHER_SERVER),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.SOURCE, "X")), R.SOURCE_UNREADABLE),
        (of(State.WAITING, code="X"), R.SOURCE_UNREADABLE),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.GATEWAY, LandingFailed.code)), R.GATEWAY_REFUSES),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.LAKE, "LAKE_SILENT")), R.LAKE_SILENT),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.LAKE, "LAKE_UNTOLD")), R.LAKE_UNTOLD),
        (of(State.WAITING, SourceFacts(State.WAITING, Stage.LAKE, "X")), R.LAKE_WAITS),
        (of(State.PENDING, SourceFacts(has_cartography=False)), R.CARTOGRAPHY_NOT_TOLD),
        (of(State.PENDING, changed_generation=6), R.AGENT_HAS_NOT_ANSWERED),
        (
            of(State.PENDING, SourceFacts(told_generation=5, configuration_pending=True), changed_generation=6),
            R.CONFIGURATION_PENDING,
        ),
        (of(State.PENDING, changed_generation=5), R.STREAM_BEGINS),
        (of(State.PENDING, start=StartKind.DUMP), R.STREAM_BEGINS),
        (of(State.PENDING, start=StartKind.DUMP, dump=DumpState.WAITING, held=DumpHeld.TURN), R.DUMP_WAITS_FOR_TURN),
        (of(State.CATCHING_UP), R.READS_OLDER_LOG),
        (of(State.CATCHING_UP, SourceFacts(State.CATCHING_UP, Stage.LAKE), State.STREAMING), R.LAKE_BEHIND),
        (of(State.CATCHING_UP, own=State.STREAMING), R.TABLE_BEHIND_IN_LAKE),
        (of(State.STREAMING), R.FOLLOWS),
        (of(State.DUMPING, dump=DumpState.PENDING), R.DUMP_NOT_TAKEN),
        (of(State.DUMPING, dump=DumpState.PLANNING), R.DUMP_PLANNING),
        (of(State.DUMPING, dump=DumpState.READING), R.DUMP_READING),
        (of(State.DUMPING, dump=DumpState.ENDING), R.DUMP_ENDING),
        (of(State.DUMPING, dump=DumpState.PAUSED), R.DUMP_PAUSED),
        (of(State.DUMPING, dump=DumpState.WAITING, held=DumpHeld.WINDOW), R.DUMP_OUTSIDE_WINDOWS),
        (of(State.DUMPING, dump=DumpState.WAITING, held=DumpHeld.SERVER_BUSY), R.DUMP_SERVER_BUSY),
        (of(State.DUMPING, dump=DumpState.READING, held=DumpHeld.RATE), R.DUMP_THROTTLED),
        (of(State.DUMPING, dump=DumpState.WAITING, held=DumpHeld.GATEWAY), R.DUMP_WAITS_FOR_GATEWAY),
        (of(State.DUMPING, dump=DumpState.WAITING, held=DumpHeld.STREAM), R.DUMP_WAITS_FOR_STREAM),
        (of(State.DUMPING, dump=DumpState.PLANNING, held=DumpHeld.ERROR), R.DUMP_FAILED_FOR_NOW),
        (of(State.DUMPING, dump=DumpState.WAITING, held=DumpHeld.TABLE_MISSING), R.DUMP_TABLE_MISSING),
    ],
)
def test_reason_when_the_database_knows_why_then_has_its_code(found: TableReason, reason: TableReason) -> None:
    assert found is reason


def _below(kind: type[MenuraError]) -> set[type[MenuraError]]:
    return {kind}.union(*(_below(each) for each in kind.__subclasses__()))


def test_reason_when_an_agent_stops_a_table_by_any_error_that_it_has_then_is_one_of_that_error() -> None:
    for kind in pkgutil.iter_modules(sources.__path__):
        importlib.import_module(f"agent.sources.{kind.name}.errors")
    stops = _below(PositionPurged) | _below(SourceRebuilt) | _below(PositionInvalid)
    stops |= _below(TableError) - {TableError} - _below(DumpError)  # a dump that fails stops no table
    ours = {each for each in stops if each.__module__.startswith("agent.")}
    unnamed = [each.code for each in ours if of(State.FAILED, failed=True, code=each.code) is R.STOPPED_BY_AGENT]
    assert len(ours) > 20 and unnamed == []


@pytest.mark.parametrize(
    "found",
    [
        of(State.STOPPED),
        of(State.STOPPED, stopped_by="somebody of a later version"),
        of(State.WAITING, SourceFacts()),
        of(State.PENDING, SourceFacts(told_generation=None)),
        of(State.DUMPING),
        of(State.DUMPING, dump=DumpState.WAITING),
    ],
)
def test_reason_when_nothing_says_why_then_is_unknown_and_not_a_guess(found: TableReason) -> None:
    assert found is R.UNKNOWN


def test_reason_when_facts_are_any_then_there_is_one() -> None:
    sources = [
        SourceFacts(stage, code, told_generation=1) for stage, code in product([None, *Stage], ["", "AGENT_AWAY"])
    ]
    tables = product(State, [None, *State], [None, *DumpState], [None, *DumpHeld], [False, True])
    for state, own, dump, held, gone in tables:
        facts = TableFacts(state, own, gone=gone, dump=dump, held=held)
        assert all(reason_of(facts, source) in R for source in sources)


def test_words_when_a_reason_has_commands_then_they_exist_and_name_the_table() -> None:
    assert set(WORDS) == set(R)
    named = set()
    for reason in R:
        words = words_of(reason, "shop", "a.b", "orders", "0f8e")
        assert words.meaning.endswith(".") and words.remedy and "{" not in words.meaning + words.remedy
        for command in commands(words.remedy):
            assert command[0] in cli.WORDS, words
            length = 2 if command[0] in ("sync", "dump", "sources", "upgrade", "token", "agent", "sink") else 1
            named.add(tuple(command[:length]))
            if command[0] in ("sync", "ledger", "why"):
                assert command[length : length + 2] == ["shop", "`a.b`.orders"], words
    for command in named:
        assert menura(*command, "--help").returncode == 0, command


def test_document_when_there_is_a_reason_then_has_its_code_and_meaning() -> None:
    page = (ROOT / "docs" / "tables.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert {cells[0].strip("|` "): cells[1] for cells in rows} == {reason: WORDS[reason].meaning for reason in R}
