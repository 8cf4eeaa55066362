"""Messages of pgoutput that Python reads: as servers write them, and as they do not."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.postgresql.stream.relations import (
    LogicalMessage,
    MessageBodyError,
    Relation,
    RelationColumn,
    Truncate,
    parse_message,
    parse_relation,
    parse_truncate,
)

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
OIDS = st.integers(0, 2**32 - 1)
RELATIONS = st.builds(
    Relation,
    OIDS,
    NAMES.filter(bool),
    NAMES,
    st.sampled_from("dfin"),
    st.lists(st.builds(RelationColumn, NAMES, OIDS, st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=5).map(
        tuple
    ),
)


def relation_body(relation: Relation) -> bytes:
    body = struct.pack("!I", relation.oid) + relation.schema.encode() + b"\0" + relation.name.encode() + b"\0"
    body += relation.replica_identity.encode() + struct.pack("!H", len(relation.columns))
    for column in relation.columns:
        body += bytes([column.identity]) + column.name.encode() + b"\0"
        body += struct.pack("!Ii", column.type_oid, column.modifier)
    return body


@given(RELATIONS)
def test_relation_when_written_then_it_is_read_as_it_was(relation: Relation) -> None:
    assert parse_relation(relation_body(relation)) == relation


@given(RELATIONS, st.data())
def test_relation_when_bytes_lack_or_are_too_many_then_it_is_refused(relation: Relation, data: st.DataObject) -> None:
    body = relation_body(relation)
    with pytest.raises(MessageBodyError):
        parse_relation(body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(MessageBodyError):
        parse_relation(body + b"\0")


@given(st.binary(max_size=60))
def test_messages_when_bytes_are_any_then_they_are_read_or_refused(body: bytes) -> None:
    for parse in (parse_relation, parse_truncate, parse_message):
        try:
            parse(body)
        except MessageBodyError:
            continue


def test_relation_when_its_schema_is_the_servers_own_then_the_empty_name_stands_for_it() -> None:
    assert parse_relation(struct.pack("!I", 7) + b"\0t\0n\0\0").table == ("pg_catalog", "t")


def test_truncate_when_it_names_tables_then_all_are_told() -> None:
    body = struct.pack("!IBII", 2, 3, 7, 9)
    assert parse_truncate(body) == Truncate((7, 9), cascades=True, restarts_identity=True)
    for wrong in (body[:-1], body + b"\0", b"\xff" * 4 + body[4:]):
        with pytest.raises(MessageBodyError):
            parse_truncate(wrong)


def test_message_when_it_is_whole_then_its_prefix_is_told() -> None:
    body = struct.pack("!BQ", 1, 500) + b"menura\0" + struct.pack("!I", 3) + b"abc"
    assert parse_message(body) == LogicalMessage("menura", transactional=True)
    with pytest.raises(MessageBodyError):
        parse_message(body[:-1])
