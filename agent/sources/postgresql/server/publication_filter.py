"""What the publication leaves out since the filter does, where the server is to: `filtered_by: server`.

Where it is to no more, the lists that this agent has made (`made_lists`) leave the publication, and others stay.

Comes in: a look at the publication. Goes out: statements that bring it in line with the filter, run where this user
may; the tables of which they could not be run now. Dropped tables leave the publication. From version 15 on a table
with ignored columns gets a column list, which has all others. Durable: the publication, on the server. A list is
replaced in one transaction, so a change is decoded by one list or by the other; a kill leaves one of them, and the next
look goes on.

A list holds numbers of columns, and binds the table:

- A new column is not in it, and its values are not sent until it is. The publication then has another number for the
  table, by which `stream.definitions` has the rows read again, as soon as every transaction of before is over. So only
  a table whose rows may be read again by themselves (`unlogged_changes: reread`) gets a list.
- The server refuses UPDATE and DELETE where a column that identifies rows is not in it, with REPLICA IDENTITY FULL
  always. Such a table gets no list, and loses the one that it has at the next look, some seconds later.
- The server refuses to alter a listed column's type, and to drop it without CASCADE, which takes the table out of the
  publication; the next look adds it again.
"""

import logging
from collections.abc import Iterable

from pg8000.exceptions import DatabaseError

from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig
from agent.sources.postgresql.server.connection import (
    DUPLICATE_OBJECT,
    LOCK_NOT_AVAILABLE,
    UNDEFINED_COLUMN,
    UNDEFINED_OBJECT,
    UNDEFINED_TABLE,
    Connection,
    rows,
    sqlstate,
    writing,
)
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.publication_state import LISTS_VERSION, PublicationState, Relation, look
from agent.sources.postgresql.server.quoting import quoted, quoted_table
from agent.table_positions import Table
from agent.unlogged import UnloggedChanges

log = logging.getLogger("menura.replicator")

#: somebody else alters the table now, or has: the next look tries it again
_LATER = frozenset({DUPLICATE_OBJECT, LOCK_NOT_AVAILABLE, UNDEFINED_COLUMN, UNDEFINED_OBJECT, UNDEFINED_TABLE})


def ignored_columns(config: PostgresqlConfig, relation: Relation) -> list[str]:
    verdict = config.filter.verdict(*relation.table)
    return [column for column in relation.columns if verdict.ignores(column)]


def why_unlisted(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> str:
    """Why a table with ignored columns can have no list; '' where it can."""
    if state.version < LISTS_VERSION:
        return "column lists are there from version 15 on"
    if state.publication is not None and state.publication.is_of_all:
        return "a publication of all tables, or of schemas, has no column lists"
    if relation.is_full:
        return "with REPLICA IDENTITY FULL the server would refuse UPDATE and DELETE"
    ignored = ignored_columns(config, relation)
    if relation.identity.intersection(ignored) or relation.stored:
        return "columns that identify rows would not be in it, and the server would refuse UPDATE and DELETE"
    if config.unlogged.of(*relation.table) is not UnloggedChanges.REREAD:
        return "unlogged_changes is not reread, and values of new columns have to be read again"
    return ""


def column_list(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> tuple[str, ...] | None:
    """That the table is to have; None: none, all its columns are published."""
    if config.filtered_by is FilteredBy.AGENT or why_unlisted(state, config, relation):
        return None
    ignored = ignored_columns(config, relation)
    return tuple(column for column in relation.columns if column not in ignored) if ignored else None


def addition(state: PublicationState, config: PostgresqlConfig, relations: Iterable[Relation]) -> str:
    """Without tables that inherit from them: these are published by their own names, or not."""
    names = []
    for one in relations:
        listed = column_list(state, config, one)
        columns = f" ({', '.join(map(quoted, listed))})" if listed is not None else ""
        names.append(f"{_only(one)}{columns}")
    return f"ALTER PUBLICATION {quoted(config.publication)} ADD TABLE {', '.join(names)}"


def removal(config: PostgresqlConfig, relation: Relation) -> str:
    return f"ALTER PUBLICATION {quoted(config.publication)} DROP TABLE {_only(relation)}"


def deviations(state: PublicationState, config: PostgresqlConfig) -> dict[Table, tuple[str, ...]]:
    """Where the publication has more, or less, than the filter lets through: the statements that mend it.

    Where the agent filters: the lists that it has made.
    """
    found: dict[Table, tuple[str, ...]] = {}
    for table, published in state.published.items():
        relation = state.relations.get(table)
        if relation is None or not published.is_member or published.is_filtered:
            continue
        if config.filtered_by is FilteredBy.AGENT and published.number not in state.made:
            continue
        if not config.filter.verdict(*table).allowed:
            found[table] = (removal(config, relation),)
        elif _is_other(published.listed, column_list(state, config, relation)):
            found[table] = (removal(config, relation), addition(state, config, [relation]))
    return found


def is_kept(state: PublicationState, table: Table) -> bool:
    """Whether this user may change what the publication has of a table."""
    publication = state.publication
    return publication is not None and publication.is_ours and not state.is_standby and state.relations[table].is_ours


def add_tables(
    connection: Connection, config: PostgresqlConfig, made: MadeLists, state: PublicationState, tables: Iterable[Table]
) -> None:
    """In the transaction that runs, with the lists that the look says. Inside `server_errors`."""
    relations = [state.relations[table] for table in tables]
    rows(connection, addition(state, config, relations))
    if any(column_list(state, config, relation) is not None for relation in relations):
        published = look(connection, config, [relation.table for relation in relations]).published
        added = [published[relation.table] for relation in relations if relation.table in published]
        made.made([one.number for one in added if one.listed is not None])


def apply_filter(
    connection: Connection, config: PostgresqlConfig, made: MadeLists, state: PublicationState
) -> frozenset[Table]:
    """Bring it in line where this user may; the tables of which that was not possible now. Inside `server_errors`."""
    later = set()
    for table, statements in deviations(state, config).items():
        if not is_kept(state, table):
            continue
        fields = {"source": config.name, "table": ".".join(table)}
        try:
            with writing(connection):
                _apply(connection, config, made, table, is_removal=len(statements) == 1)
        except DatabaseError as failed:
            if sqlstate(failed) not in _LATER:
                raise
            log.warning("the publication can't be changed now", extra={"fields": fields | {"error": sqlstate(failed)}})
            later.add(table)
        else:
            log.info("the publication follows the filter", extra={"fields": fields})
    made.forget_former(connection)
    return frozenset(later)


def follow_filter(connection: Connection, config: PostgresqlConfig, made: MadeLists) -> bool:
    """The same by a look of its own, at what is published by now; whether it has changed. Inside `server_errors`."""
    if config.filtered_by is FilteredBy.AGENT and not made.numbers:
        return False
    state = look(connection, config, (), made.numbers)
    kept = {table for table in deviations(state, config) if is_kept(state, table)}
    return bool(kept - apply_filter(connection, config, made, state)) if kept else False


def _apply(
    connection: Connection, config: PostgresqlConfig, made: MadeLists, table: Table, *, is_removal: bool
) -> None:
    """In one transaction. The first statement keeps others from altering the table, so the list is of how it is."""
    before = look(connection, config, [table]).relations.get(table)
    if before is None:
        return
    rows(connection, removal(config, before))
    now = look(connection, config, [table])
    if not is_removal and table in now.relations:
        add_tables(connection, config, made, now, [table])


def without_lists(connection: Connection, config: PostgresqlConfig) -> None:
    """Nobody reads the publication any more: its lists bind no table longer. Inside `server_errors`."""
    if config.filtered_by is FilteredBy.AGENT:
        return
    state = look(connection, config, ())
    for table, published in state.published.items():
        if published.listed is not None and is_kept(state, table):
            with writing(connection):
                rows(connection, removal(config, state.relations[table]))


def _is_other(listed: frozenset[str] | None, wanted: tuple[str, ...] | None) -> bool:
    return listed != (None if wanted is None else frozenset(wanted))


def _only(relation: Relation) -> str:
    return quoted_table(relation.table) if relation.kind == "p" else f"ONLY {quoted_table(relation.table)}"
