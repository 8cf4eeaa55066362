"""A stream whose filter denies a synced table while it runs: the table stops, and is not taken for one that is gone."""

from types import SimpleNamespace
from typing import Any

import pytest

from agent.errors import FilterColumnUnknown
from agent.filter import Filter, KnownTable
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.stream.definition_store import Known
from agent.sources.postgresql.stream.definitions import StreamDefinitions
from agent.sources.postgresql.stream.looks import Look
from agent.unlogged import UnloggedPolicy
from tests.agent.postgresql.test_definition_changes import column, table

T = ("shop", "t")


class Told:
    """Of the stream's parts, what the definitions ask of them."""

    def __init__(self, filter_: Filter) -> None:
        self.stops: list[tuple[tuple[str, str], str]] = []
        self.events: list[Any] = []
        ignore = SimpleNamespace(are=lambda _: None, tell=lambda *_: None, put=lambda *_: None)
        config = SimpleNamespace(
            name="shop", filter=filter_, unlogged=UnloggedPolicy(), dump=SimpleNamespace(max_rereads_per_hour=1)
        )
        decoder = SimpleNamespace(
            in_transaction=False, commit_timestamp_us=0, next_transaction_id=1, transaction_lsn=1, take_gsn=lambda: 1
        )
        context = SimpleNamespace(
            config=config, decoder=decoder, store=ignore, shared=ignore, catalog=None, look_soon=lambda: None,
            known={T: Known(table(column(1, "id")))},
        )  # fmt: skip
        stops = SimpleNamespace(stop_here=lambda name, error: self.stops.append((name, error.code)))
        read = SimpleNamespace(publish=lambda: None, finished_lsn=1)
        cuts = SimpleNamespace(number=1, add_event=self.events.append)
        self.definitions = StreamDefinitions(context, stops, read, cuts)  # type: ignore[arg-type]


def look(*denied: tuple[str, str]) -> Look:
    """At a table that is there as ever; a denied one is not among those that were asked for by name."""
    definition = table(column(1, "id"))
    shown = {} if denied else {T: definition}
    return Look(1.0, 1, 1, True, shown, {definition.oid: definition}, denied=frozenset(denied))


@pytest.mark.parametrize("is_denied_still", [True, False])
def test_look_when_the_filter_has_denied_a_table_then_nothing_says_that_it_was_dropped(is_denied_still: bool) -> None:
    """An ignored column was dropped: the table's rows left the lake, although it was there."""
    found = Filter(rules={"shop.t": ("secret",)}, identifiers=IDENTIFIERS)
    (error,) = found.check([KnownTable(*T, ["id"], [])], "shop")
    assert isinstance(error, FilterColumnUnknown)
    if not is_denied_still:
        assert found.check([KnownTable(*T, ["id", "secret"], [])], "shop") == []
    told = Told(found)
    told.definitions.look(look(T), [T])
    assert told.events == []
    assert told.stops == ([(T, "FILTER_COLUMN_UNKNOWN")] if is_denied_still else [])
