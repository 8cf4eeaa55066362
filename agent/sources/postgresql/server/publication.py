"""The publication: which tables' changes the server sends, and how tables get there.

Comes in: the tables of a sync. Goes out: for each table whose changes do not come whole an error that has the statement
which mends it. What this user may do is done: the publication is made, tables are added to it, and what it leaves out
by the filter is kept in line (`publication_filter`).

A table whose rows nothing identifies is never added: from then on its server would refuse the application's UPDATE and
DELETE on it. From version 18 on it refuses them too where a generated column identifies rows and is not published. So
the publication is made with these columns, and the decoder steps over their values.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from menura.naming import sync_anew, sync_retry
from pg8000.exceptions import DatabaseError

from agent.errors import TableError
from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig
from agent.sources.postgresql.errors import TableIdentityMissing, TableUnpublished
from agent.sources.postgresql.server.connection import DUPLICATE_OBJECT, Connection, rows, sqlstate, writing
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.publication_filter import (
    add_tables,
    addition,
    apply_filter,
    deviations,
    is_kept,
    removal,
)
from agent.sources.postgresql.server.publication_state import (
    GENERATED_VERSION,
    KINDS,
    PublicationState,
    Relation,
    look,
)
from agent.sources.postgresql.server.quoting import quoted, quoted_table
from agent.table_positions import Table

#: so many statements a message has
MOST_STATEMENTS = 10
#: for each of them but the last the tables were altered meanwhile
_LOOKS = 10
DOING = "checking whether the table's changes are published"
_UNREAD = "None of its changes is read; the source's other tables are not concerned"


@dataclass(frozen=True, slots=True)
class Lack:
    """Why not all changes of a table come, and what mends it."""

    found: str
    statements: tuple[str, ...]
    #: nothing identifies its rows
    is_identity: bool = False
    #: which comes instead
    in_its_place: Table | None = None


@dataclass(frozen=True, slots=True)
class Ensured:
    """Of the tables that were asked for and exist."""

    #: of those whose changes are not published, or not whole
    errors: Mapping[Table, TableError]
    #: those of which the publication is to be changed and could not be now: columns may be left out until then
    later: frozenset[Table]
    #: published ones of which the server refuses UPDATE and DELETE, since nothing identifies their rows any more
    refused: Mapping[Table, Lack]


def ensure_published(
    connection: Connection, config: PostgresqlConfig, made: MadeLists, tables: Collection[Table]
) -> Ensured:
    """Have the tables' changes published where this user may.

    On the server whose changes are read; inside `server_errors`.
    """
    state = look(connection, config, tables, made.numbers)
    added = state.addable()
    if state.publication is None and state.may_create and not state.is_standby:
        statement = f"CREATE PUBLICATION {quoted(config.publication)} {_options(state)}"
        _write(connection, lambda: rows(connection, statement))
        state = look(connection, config, tables)
    if added:
        _write(connection, partial(add_tables, connection, config, made, state, added))
        state = look(connection, config, tables, made.numbers)
    later = frozenset[Table]()
    if deviations(state, config):
        later = apply_filter(connection, config, made, state)
        state = look(connection, config, tables, made.numbers)
    if config.filtered_by is FilteredBy.AGENT:
        made.stay([table for table, published in state.published.items() if published.listed is not None])
    settled = _settled(connection, config, tables, state)
    errors, refused = unpublished(settled, config, tables), refused_changes(settled, config, tables)
    return Ensured(errors, later.intersection(tables), refused)


def _settled(
    connection: Connection, config: PostgresqlConfig, tables: Collection[Table], state: PublicationState
) -> PublicationState:
    """Where something lacks, the newest look that another one confirms: a look has several statements, and one that
    alters a table between two of them makes columns lack that are gone."""
    for _ in range(_LOOKS):
        if not unpublished(state, config, tables):
            break
        before, state = state, look(connection, config, tables, state.made)
        if state == before:
            break
    return state


def unpublished(
    state: PublicationState, config: PostgresqlConfig, tables: Collection[Table]
) -> dict[Table, TableError]:
    """Those of the tables whose changes do not come, or not whole, and why."""
    lacks = ((table, lack_of(state, config, state.relations[table])) for table in tables if table in state.relations)
    return {table: _error(lack, config, table) for table, lack in lacks if lack is not None}


def refused_changes(state: PublicationState, config: PostgresqlConfig, tables: Collection[Table]) -> dict[Table, Lack]:
    """Those of the tables that are published, and of which the server refuses UPDATE and DELETE."""
    lacks = (
        (table, _identity_lack(state, config, state.relations[table]))
        for table in tables
        if table in state.published and table in state.relations
    )
    return {table: lack for table, lack in lacks if lack is not None}


def _options(state: PublicationState) -> str:
    generated = ", publish_generated_columns = stored" if state.version >= GENERATED_VERSION else ""
    return f"WITH (publish_via_partition_root = true{generated})"


def _write(connection: Connection, statements: Callable[[], object]) -> None:
    try:
        with writing(connection):
            statements()
    except DatabaseError as failed:
        if sqlstate(failed) != DUPLICATE_OBJECT:  # somebody was faster: the next look shows it
            raise


def lack_of(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> Lack | None:
    """Why not all changes of a table come; None: all do."""
    name = quoted(config.publication)
    published, publication = state.published.get(relation.table), state.publication
    if published is None or publication is None:
        return _missing(state, config, relation)
    if publication.kinds != frozenset(KINDS):
        lacking = ", ".join(kind for kind in KINDS if kind not in publication.kinds)
        statement = f"ALTER PUBLICATION {name} SET (publish = '{', '.join(KINDS)}')"
        return Lack(f"the publication {name} leaves out {lacking}", (statement,))
    anew = (removal(config, relation), addition(state, config, [relation]))
    if published.is_filtered:
        return Lack(f"the publication {name} leaves out rows, by a row filter", anew)
    verdict = config.filter.verdict(*relation.table)
    hidden = set(relation.columns).difference(relation.columns if published.columns is None else published.columns)
    hidden = {column for column in hidden if not verdict.ignores(column)}
    is_to_follow = config.filtered_by is FilteredBy.SERVER and is_kept(state, relation.table)
    if hidden and not is_to_follow:
        return Lack(f"the publication {name} leaves out columns: {', '.join(sorted(hidden))}", anew)
    return None


def _missing(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> Lack:
    name, table = quoted(config.publication), quoted_table(relation.table)
    if relation.is_unlogged:
        found = "the table is UNLOGGED: its changes are not in the server's WAL"
        return Lack(found, (f"ALTER TABLE {table} SET LOGGED",))
    above = next((above for above in relation.above if above in state.published), None)
    if above is not None:
        found = f"its changes are published as those of {quoted_table(above)}, of which it is a partition"
        return Lack(found, (), in_its_place=above)
    if relation.kind == "p" and state.publication is not None and not state.publication.via_root:
        statement = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
        return Lack(f"the publication {name} has its partitions, and not the partitioned table", (statement,))
    unidentified = _identity_lack(state, config, relation)
    if unidentified is not None:
        return unidentified
    added = addition(state, config, [relation])
    if state.publication is None:
        found = f"there is no publication {name}, and this user may not make it"
        return Lack(found, (f"CREATE PUBLICATION {name} {_options(state)}", added))
    return Lack(f"the publication {name} lacks the table, and this user may not add it", (added,))


def _identity_lack(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> Lack | None:
    """Why the server refuses UPDATE and DELETE of the table while it is published; None: it does not."""
    name = quoted(config.publication)
    if relation.unidentified:
        parts = "" if relation.unidentified == (relation.table,) else f" of {len(relation.unidentified)} partitions"
        return Lack(
            f"nothing identifies the rows{parts}: there is neither a primary key nor another replica identity, and once"
            " they are published the server refuses UPDATE and DELETE of them",
            tuple(f"ALTER TABLE {quoted_table(one)} REPLICA IDENTITY FULL" for one in relation.unidentified),
            is_identity=True,
        )
    if relation.virtual:
        return Lack(
            "virtual generated columns are part of what identifies rows, and once they are published the server refuses"
            " UPDATE and DELETE of them",
            tuple(f"ALTER TABLE {quoted_table(one)} REPLICA IDENTITY DEFAULT" for one in relation.virtual),
            is_identity=True,
        )
    if state.lacks_generated(relation):
        return Lack(
            f"generated columns are part of what identifies rows, the publication {name} leaves them out, and once they"
            " are published the server refuses UPDATE and DELETE of them",
            (f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored)",),
            is_identity=True,
        )
    return None


def joined(statements: Iterable[str]) -> str:
    """For a message, each once; of many only the first."""
    different = list(dict.fromkeys(statements))
    more = len(different) - MOST_STATEMENTS
    return "; ".join(different[:MOST_STATEMENTS]) + (f"; and {more} more like these" if more > 0 else "")


def _error(lack: Lack, config: PostgresqlConfig, table: Table) -> TableError:
    kind = TableIdentityMissing if lack.is_identity else TableUnpublished
    otherwise = "; or give it a primary key" if lack.is_identity else ""
    remedy = (
        f"Run on the server, as the owner of the table and of the publication: {joined(lack.statements)}{otherwise};"
        f" then run: {sync_retry(config.name, *table)}"
    )
    if lack.in_its_place is not None:
        remedy = f"Sync that table in its place: {sync_anew(config.name, *lack.in_its_place)}"
    return kind(DOING, lack.found, data=_UNREAD, remedy=remedy, source=config.name, database=table[0], table=table[1])
