"""What a view's turn is given: where its inputs are, all of them at one cut of each source.

Comes in: which tables and views each view reads, and how the views stand. Goes out: an order of the views, and of one
its `ViewWork`; or a `SinkError` where its inputs are not there, or not together. Reads the lake's boundaries alone.
"""

from collections.abc import Mapping, Sequence

from menura.instants import now_us
from menura.views.definition import InputName, ViewCut, ViewDefinition

from spark_sink.errors import (
    CutBeforeHorizon,
    CutNotComplete,
    TableNotAtCut,
    TableNotInLake,
    ViewInputsNotReady,
)
from spark_sink.ingest.recomputations import ViewName
from spark_sink.ingest.view_standings import Standing
from spark_sink.reading_at import lake_at
from spark_sink.views.inputs import InputAt
from spark_sink.views.maintain import ViewWork, view_table_id
from spark_sink.work import TableId


def levels(reads: Mapping[ViewName, Sequence[InputName]]) -> list[list[ViewName]]:
    """Views whose inputs are tables or views before them; those that read each other in turn are left out.

    >>> b = ("acme", "b")
    >>> levels({b: [InputName.of_view("a")], ("acme", "a"): [], ("acme", "c"): [InputName.of_view("c")]})
    [[('acme', 'a')], [('acme', 'b')]]
    """
    left = {
        name: {(name[0], each.table) for each in found if each.is_view} & reads.keys() for name, found in reads.items()
    }
    found: list[list[ViewName]] = []
    while ready := sorted(name for name, above in left.items() if not above & left.keys()):
        found.append(ready)
        left = {name: above for name, above in left.items() if name not in ready}
    return found


def work_of(
    lake: str, definition: ViewDefinition, reads: Sequence[InputName], standings: Mapping[ViewName, Standing]
) -> ViewWork:
    """Raises `SinkError` where they are not there, or not together."""
    found: list[InputAt] = []
    cuts: dict[str, ViewCut] = {}
    for name in reads:
        if not name.is_view:
            continue
        held = standings.get((definition.tenant, name.table))
        if held is None or held.version is None:
            raise _not_ready(f"the view {name} has no version")
        for cut in held.state.cuts:
            if cuts.setdefault(cut.source, cut).cut != cut.cut:
                raise _not_ready(f"views that it reads are at different cuts of {cut.source}")
        table = view_table_id(definition.tenant, name.table)
        found.append(InputAt(name, table, held.version.changelog_version, held.version.current_version))
    for source in dict.fromkeys(name.source for name in reads if not name.is_view):
        tables = [
            TableId(definition.tenant, *(name.source, name.database, name.table))
            for name in reads
            if name.source == source
        ]
        at = {(definition.tenant, source): cuts[source].cut} if source in cuts else None
        try:
            read = lake_at(lake, tables, cuts=at)
        except (TableNotInLake, CutBeforeHorizon, CutNotComplete, TableNotAtCut) as absent:
            raise _not_ready(absent.found) from absent
        cuts[source] = ViewCut(source, read.sources[0].cut, read.sources[0].committed_us)
        found += [
            InputAt(
                InputName(each.table.source, each.table.database, each.table.table),
                each.table,
                each.changelog_version,
                each.current_version,
            )
            for each in read.tables
        ]
    return ViewWork(
        definition,
        tuple(sorted(found, key=lambda each: each.name)),
        tuple(cuts[name] for name in sorted(cuts)),
        now_us(),
    )


def _not_ready(found: str) -> ViewInputsNotReady:
    return ViewInputsNotReady(
        "reading a view's inputs",
        found,
        data="The view stays at its last version; tables and other views go on",
        remedy="It goes on by itself once they are there together",
    )
