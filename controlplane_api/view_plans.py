"""Plans of joined views over what this database knows of a tenant's tables.

Comes in: a view's text, within a transaction. Goes out: its plan (`menura.views.plan`), made over the tables that the
tenant's sources have told of, and over the plans of the views that it reads. Nothing is stored.

A cartography has types in its server's words, so types are not known here (`Column.type` is empty) and whatever depends
on them passes; sinks, which have the lake's, plan again. Nor does it say which unique key is the primary one: each one
without a null counts, the first one first, up to `MAX_TRIES` choices of keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from menura.naming import lake_column
from menura.views import definition
from menura.views.definition import Column, InputName, Shape
from menura.views.explain import Explanation, explain, explain_query
from menura.views.parsing import refuse
from menura.views.plan import Plan, make_plan
from menura.views.query_plan import QueryPlan, plan_query
from menura.views.reads import inputs_of
from menura.views.scheduled import is_scheduled, read_scheduled, scheduled
from sqlalchemy import Connection, select

from controlplane_api.documents import Document
from controlplane_api.errors import ViewRefused
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, JoinedView, Source, SourceTable, Tenant

MAX_TRIES = 16
#: of a text that can't be followed, and could be recomputed
ON_SCHEDULE = (
    "Where it need not follow each change, have it recomputed on a schedule: --every 1h, or SCHEDULE EVERY 1 HOUR AS"
    " before its text"
)
#: what is known of a table's columns is what its agent has told last
NEW_COLUMN = (
    "Check its name. If it was just added or renamed at its source, repeat this in half a minute: an agent that reads"
    " the table's changes has told of it by then, another one within ten minutes."
)


@dataclass(frozen=True, slots=True)
class Planned:
    plan: Plan | QueryPlan
    #: of what it reads, as servers estimate
    rows: Mapping[InputName, int]
    #: likewise, in bytes
    sizes: Mapping[InputName, int]
    #: whether it is of earlier cuts than its tables are, since it or a view that it reads is recomputed on a schedule
    lags: bool
    #: of a view that is recomputed, why it is not followed; '': it could be
    why: str = ""

    @property
    def tables(self) -> list[InputName]:
        return [each for each in self._names if not each.is_view]

    @property
    def views(self) -> list[str]:
        return [each.table for each in self._names if each.is_view]

    @property
    def _names(self) -> list[InputName]:
        if isinstance(self.plan, QueryPlan):
            return [name for name, _ in self.plan.inputs]
        return list(dict.fromkeys(each.name for each in self.plan.inputs))

    @property
    def every_seconds(self) -> int | None:
        return self.plan.every_seconds if isinstance(self.plan, QueryPlan) else None

    def explained(self) -> Explanation:
        if isinstance(self.plan, QueryPlan):
            return explain_query(self.plan, self.why, self.rows, self.sizes)
        return explain(self.plan, self.rows)


def planned(connection: Connection, tenant: str, name: str, sql: str) -> Planned:
    """Raises `ViewRefused`."""
    _check_signs(name, sql)
    return _planned(connection, tenant, sql, (name,))


def _check_signs(name: str, sql: str) -> None:
    """No sign that a reader of the text would not see, or that a database does not keep."""
    for number, line in enumerate(sql.split("\n"), 1):
        for place, sign in enumerate(line, 1):
            if not sign.isprintable() and sign not in "\t\r":
                found = f"it has a control character, U+{ord(sign):04X} (line {number}, column {place})"
                raise ViewRefused.at(f"planning view {name}", found, number, place, "Take it out.")


def _planned(connection: Connection, tenant: str, sql: str, above: tuple[str, ...]) -> Planned:
    """`above`: the view, before it those that read it."""
    doing = f"planning view {above[-1]}"
    try:
        inputs = inputs_of(sql)
        rows = _rows(connection, tenant, [each for each in inputs if not each.is_view])
        views = {each: _of_view(connection, tenant, each.table, above) for each in inputs if each.is_view}
        lagging = [each for each, below in views.items() if below is not None and below.lags]
        if lagging and len(views) > 1:
            refuse(
                f"it reads {lagging[0]}, of its last recomputation's cuts, and another view, of later ones",
                remedy="Read it alone, or beside tables, which are read at its cuts",
            )
        shapes = {each: _shapes(each, rows) for each in inputs if not each.is_view} | {
            each: [] if below is None else [below.plan.shape] for each, below in views.items()
        }
        plan, why = _scheduled(sql, shapes) if is_scheduled(sql) else (_made(sql, shapes), "")
    except definition.ViewRefused as refused:
        remedy = refused.remedy or (NEW_COLUMN if refused.lacks_column else "")
        if len(above) == 1 and _could_be_scheduled(connection, tenant, sql, above):
            remedy = f"{remedy}. {ON_SCHEDULE}" if remedy else ON_SCHEDULE
        raise ViewRefused.at(doing, refused.found, refused.line, refused.column, remedy) from refused
    estimated = {each: row.estimated_rows for each, row in rows.items() if row.estimated_rows is not None}
    sizes = {each: row.size_bytes for each, row in rows.items() if row.size_bytes is not None}
    return Planned(plan, estimated, sizes, isinstance(plan, QueryPlan) or bool(lagging), why)


def _scheduled(sql: str, shapes: Mapping[InputName, Sequence[Shape]]) -> tuple[QueryPlan, str]:
    """Its plan, and why it is not followed. Raises `menura.views.definition.ViewRefused`."""
    plan = _query_plan(sql, shapes)
    try:
        _made(read_scheduled(sql).sql, shapes)
    except definition.ViewRefused as refused:
        return plan, refused.reason
    return plan, ""


def _query_plan(sql: str, shapes: Mapping[InputName, Sequence[Shape]]) -> QueryPlan:
    return plan_query(sql, {name: choices[0] for name, choices in shapes.items() if choices})


def _could_be_scheduled(connection: Connection, tenant: str, sql: str, above: tuple[str, ...]) -> bool:
    if is_scheduled(sql):
        return False
    try:
        _planned(connection, tenant, scheduled(sql, "1h"), above)
    except ViewRefused:
        return False
    return True


def _of_view(connection: Connection, tenant: str, name: str, above: tuple[str, ...]) -> Planned | None:
    """None: there is no such view, which the plan says with its place."""
    found = select(JoinedView.sql).join(Tenant).where(Tenant.name == tenant, JoinedView.name == name)
    sql = connection.execute(found).scalar()
    if name in above:
        circle = " reads ".join([*above[above.index(name) :], name])
        raise ViewRefused.at(f"planning view {above[-1]}", f"views read each other in a circle: {circle}")
    return None if sql is None else _planned(connection, tenant, sql, (*above, name))


def _rows(connection: Connection, tenant: str, tables: Sequence[InputName]) -> dict[InputName, AnyRow]:
    """Of those that the tenant's sources have told of, and that may leave their hosts."""
    names = [(each.source, each.database, each.table) for each in tables]
    rows = connection.execute(
        select(
            Source.name.label("source"), SourceTable.database, SourceTable.name,
            SourceTable.columns, SourceTable.keys, SourceTable.estimated_rows, SourceTable.size_bytes,
        )
        .join_from(SourceTable, Source)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .where(
            Tenant.name == tenant, SourceTable.gone.is_(False), SourceTable.denied.is_(False),
            among((Source.name, SourceTable.database, SourceTable.name), names),
        )
    )  # fmt: skip
    return {InputName(row.source, row.database, row.name): row for row in rows}


def _shapes(table: InputName, rows: Mapping[InputName, AnyRow]) -> list[Shape]:
    """One for each key that may be the table's; none: there is no such table, which the plan says with its place."""
    row = rows.get(table)
    if row is None:
        return []
    columns = tuple(Column(lake_column(one["name"]), "") for one in row.columns if not one["ignored"])
    return [Shape(columns, tuple(map(lake_column, key))) for key in _keys(row.columns, row.keys)] or [
        Shape(columns, ())
    ]


def _keys(columns: Sequence[Document], keys: Sequence[Document]) -> Iterator[list[str]]:
    """
    >>> columns = [{"name": "id", "nullable": False}, {"name": "note", "nullable": True}]
    >>> list(_keys(columns, [{"unique": True, "columns": ["note"]}, {"unique": True, "columns": ["id"]}]))
    [['id']]
    """
    nullable = {one["name"]: one["nullable"] for one in columns}
    for key in keys:
        if key["unique"] and key["columns"] and not any(nullable.get(name, True) for name in key["columns"]):
            yield key["columns"]


def _made(sql: str, shapes: Mapping[InputName, Sequence[Shape]]) -> Plan:
    """With the first choice of keys that it can be made with. Raises what refuses the first choice."""
    known = {name: choices for name, choices in shapes.items() if choices}
    first: definition.ViewRefused | None = None
    for chosen in islice(product(*known.values()), MAX_TRIES):
        try:
            return make_plan(sql, dict(zip(known, chosen, strict=True)))
        except definition.ViewRefused as refused:
            first = first or refused
    assert first is not None
    raise first
