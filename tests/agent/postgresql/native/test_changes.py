"""Changes of every kind and replica identity, as a real server streams them."""

import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from menura.change_batch import ChangeType

from agent.sources.postgresql.native.decoder import DecodeError, Reason
from agent.sources.postgresql.stream.relations import RelationColumn, parse_relation
from tests.agent.postgresql.native.capture import (
    Decoded,
    decode,
    feed,
    new_decoder,
    plan_of,
    record,
    streamed,
)
from tests.postgres import SourceServer

INSERT, BEFORE, AFTER, DELETE = list(ChangeType)[:4]
#: stored outside of the row, since it can't be compressed
LARGE = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)"


def _kinds(rows: list[dict[str, object]], *columns: str) -> list[tuple[object, ...]]:
    """Each row's kind, the columns' values, and which columns it lacks."""
    return [(row["_change_type"], *(row[name] for name in columns), _absent(row, [*columns])) for row in rows]


def _absent(row: dict[str, object], columns: list[str]) -> str:
    bits = row.get("_absent")
    if bits is None:
        return ""
    assert isinstance(bits, bytes)
    assert len(bits) == (len(columns) + 7) // 8
    number = int.from_bytes(bits, "little")
    assert number >> len(columns) == 0
    return ",".join(name for place, name in enumerate(columns) if number >> place & 1)


def _changes(server: SourceServer, identity: str, table: str = "a", nullable: str = "") -> list[dict[str, object]]:
    definition = f"CREATE TABLE {table} (id integer PRIMARY KEY, code text NOT NULL, n integer, large text)"
    return decode(
        streamed(
            server,
            f"INSERT INTO {table} VALUES (1, 'x', 10, {LARGE}), (2, 'y', NULL, 'small')",
            f"UPDATE {table} SET n = 11 WHERE id = 1",
            f"UPDATE {table} SET id = 3, n = 12 WHERE id = 1",
            f"UPDATE {table} SET code = 'z' WHERE id = 3",
            f"UPDATE {table} SET large = NULL WHERE id = 3",
            f"DELETE FROM {table}",
            before=(
                definition,
                f"CREATE UNIQUE INDEX {table}_code ON {table} (code)",
                f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
            ),
        )
    ).rows(table, everything=True)


def _large(server: SourceServer) -> object:
    [(text,)] = server.run(f"SELECT {LARGE}")
    return text


def test_by_the_primary_key_an_update_has_the_new_row_and_a_changed_key(server: SourceServer) -> None:
    rows = _changes(server, "DEFAULT")

    large = _large(server)
    rest = "code,n,large"
    assert _kinds(rows, "id", "code", "n", "large") == [
        (INSERT, 1, "x", 10, large, ""),
        (INSERT, 2, "y", None, "small", ""),
        (AFTER, 1, "x", 11, None, "large"),
        (BEFORE, 1, None, None, None, rest),
        (AFTER, 3, "x", 12, None, "large"),
        (AFTER, 3, "z", 12, None, "large"),
        (AFTER, 3, "z", 12, None, ""),
        (DELETE, 2, None, None, None, rest),
        (DELETE, 3, None, None, None, rest),
    ]
    assert [row["_gsn"] for row in rows] == list(range(1, 10))


def test_by_an_index_its_columns_are_the_old_row(server: SourceServer) -> None:
    rows = _changes(server, "USING INDEX a_code")

    large = _large(server)
    rest = "id,n,large"
    assert _kinds(rows, "id", "code", "n", "large") == [
        (INSERT, 1, "x", 10, large, ""),
        (INSERT, 2, "y", None, "small", ""),
        (AFTER, 1, "x", 11, None, "large"),
        (AFTER, 3, "x", 12, None, "large"),
        (BEFORE, None, "x", None, None, rest),
        (AFTER, 3, "z", 12, None, "large"),
        (AFTER, 3, "z", 12, None, ""),
        (DELETE, None, "y", None, None, rest),
        (DELETE, None, "z", None, None, rest),
    ]


def test_a_full_old_row_tells_what_an_update_left_alone(server: SourceServer) -> None:
    rows = _changes(server, "FULL")

    large = _large(server)
    assert _kinds(rows, "id", "code", "n", "large") == [
        (INSERT, 1, "x", 10, large, ""),
        (INSERT, 2, "y", None, "small", ""),
        (BEFORE, 1, "x", 10, large, ""),
        (AFTER, 1, "x", 11, large, ""),
        (BEFORE, 1, "x", 11, large, ""),
        (AFTER, 3, "x", 12, large, ""),
        (BEFORE, 3, "x", 12, large, ""),
        (AFTER, 3, "z", 12, large, ""),
        (BEFORE, 3, "z", 12, large, ""),
        (AFTER, 3, "z", 12, None, ""),
        (DELETE, 2, "y", None, "small", ""),
        (DELETE, 3, "z", 12, None, ""),
    ]
    assert all("_absent" not in row for row in rows)


def test_an_identity_that_is_stored_outside_of_the_row_is_known_where_it_changes(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO b SELECT repeat(md5(n::text), 40), 1 FROM generate_series(1, 1) n",
        "UPDATE b SET n = 2",
        "UPDATE b SET id = 'short'",
        before=("CREATE TABLE b (id text PRIMARY KEY, n integer)", "ALTER TABLE b ALTER id SET STORAGE EXTERNAL"),
    )

    rows = decode(data).rows("b", everything=True)

    [key] = {row["id"] for row in rows[:1]}
    assert len(str(key)) == 1280
    assert _kinds(rows, "id", "n") == [
        (INSERT, key, 1, ""),
        (AFTER, key, 2, ""),
        (BEFORE, key, None, "n"),
        (AFTER, "short", 2, ""),
    ]


def test_columns_that_are_not_sent_are_stepped_over(server: SourceServer) -> None:
    data = streamed(
        server,
        f"INSERT INTO a VALUES (1, 'x', 10, {LARGE})",
        "UPDATE a SET n = 11",
        "UPDATE a SET id = 2",
        before=("CREATE TABLE a (id integer PRIMARY KEY, code text, n integer, large text)",),
    )
    decoder = new_decoder()
    for reason in feed(decoder, data):
        if reason is Reason.MESSAGE and decoder.message.kind == "R":
            relation = parse_relation(decoder.message.body)
            decoder.define(relation.oid, plan_of(relation, sent=("id", "n")))

    rows = Decoded(batches=decoder.take_batches()).rows("a", everything=True)

    assert _kinds(rows, "id", "n") == [
        (INSERT, 1, 10, ""),
        (AFTER, 1, 11, ""),
        (BEFORE, 1, None, "n"),
        (AFTER, 2, 11, ""),
    ]
    assert set(rows[0]) == {"_change_type", "_gsn", "_transaction", "id", "n", "_unrepresentable", "_absent"}


def test_transactions_have_their_xids_times_and_places(server: SourceServer) -> None:
    server.run("CREATE TABLE a (id integer PRIMARY KEY)", database="shop")
    recording = record(server)
    xids = []
    with server.connect("shop") as connection:
        for number in range(3):
            with connection.transaction():
                connection.execute(f"INSERT INTO a VALUES ({2 * number}), ({2 * number + 1})")
                xids.append(connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0])
    [(now,)] = server.run("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    decoder = new_decoder()
    decoder.stop_at_transaction_begin = decoder.stop_at_transaction_end = True
    decoded = Decoded()
    seen = []
    for reason in feed(decoder, recording.stream()):
        decoded.reasons.append(reason)
        if reason is Reason.MESSAGE and decoder.message.kind == "R":
            relation = parse_relation(decoder.message.body)
            decoder.define(relation.oid, plan_of(relation))
        if reason is Reason.TRANSACTION_BEGIN:
            assert decoder.in_transaction
            seen.append((decoder.transaction_xid, decoder.transaction_lsn, decoder.transaction_first_gsn))
            assert 0 <= now - decoder.commit_timestamp_us < 600_000_000 or len(seen) > 3
        if reason is Reason.TRANSACTION_END:
            assert not decoder.in_transaction
            assert decoder.finished_lsn > decoder.transaction_lsn

    assert [xid for xid, _, _ in seen[:3]] == xids
    assert [first for _, _, first in seen[:3]] == [1, 3, 5]
    assert decoder.transaction_first_gsn == decoder.next_gsn == 7
    assert (decoder.rows, decoder.pending_rows, decoder.next_transaction_id) == (6, 6, 1 + len(seen))
    taken = decoder.take_transactions()
    assert [(xid, lsn) for xid, lsn, _ in taken] == [(xid, lsn) for xid, lsn, _ in seen]
    assert all(lsn < end for _, lsn, end in taken)
    assert decoder.take_transactions() == []
    assert decoder.finished_lsn >= taken[-1][2]
    assert decoder.server_end_lsn >= decoder.finished_lsn
    count, first, last = decoder.take_times()
    assert count == len(seen)
    assert first <= last == decoder.commit_timestamp_us
    [batch] = decoder.take_batches()
    transactions = pa.record_batch(batch.transactions).to_pylist()
    assert [row["_position"] for row in transactions] == [
        f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}" for _, lsn, _ in seen[:3]
    ]
    assert [row["_transaction_id"] for row in transactions] == [1, 2, 3]
    assert (batch.first_gsn, batch.last_gsn, batch.plan.last_gsn) == (1, 6, 6)


def test_what_is_no_row_is_handed_over_in_its_place(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a VALUES (1, 'a')",
        "TRUNCATE a, c RESTART IDENTITY CASCADE",
        "SELECT pg_logical_emit_message(true, 'prefix', 'within')",
        "ALTER TABLE a ADD m mood",
        "INSERT INTO a VALUES (2, 'b', 'happy')",
        before=(
            "CREATE TYPE mood AS ENUM ('happy')",
            "CREATE TABLE a (id integer PRIMARY KEY, t varchar(7))",
            "CREATE TABLE c (id integer PRIMARY KEY)",
        ),
    )

    decoded = decode(data)

    # a relation comes whenever the server has forgotten that it has sent it
    others = [message for message in decoded.messages if message.kind != "R"]
    assert [message.kind for message in others] == ["T", "M", "Y", "M"]
    relations = [parse_relation(message.body) for message in decoded.messages if message.kind == "R"]
    assert [column.name for column in relations[-1].columns] == ["id", "t", "m"]
    assert relations[0].columns[1] == RelationColumn("t", 1043, 11, identity=False)
    oid_of = {relation.name: relation.oid for relation in relations}
    truncate = others[0].body
    assert struct.unpack(">IB2I", truncate) == (2, 3, oid_of["a"], oid_of["c"])
    flags, lsn = struct.unpack_from(">BQ", others[1].body)
    assert (flags, lsn) == (1, others[1].lsn)
    assert others[1].body[9:] == b"prefix\0" + (6).to_bytes(4, "big") + b"within"
    assert [batch.row_count for batch in decoded.batches] == [1, 1]
    assert decoded.rows("a")[1]["m"] == "happy"


def test_rows_do_not_depend_on_how_the_bytes_come(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a SELECT n, n || ' text', n * 1.5 FROM generate_series(1, 200) n",
        "UPDATE a SET n = -n WHERE id % 3 = 0",
        "DELETE FROM a WHERE id % 5 = 0",
        before=("CREATE TABLE a (id integer PRIMARY KEY, t text, n numeric(9,3))",),
    )
    whole = decode(data)

    for chunk in (1, 7, 4096):
        found = decode(data, chunk=chunk)
        assert found.rows("a", everything=True) == whole.rows("a", everything=True)
        assert found.transactions == whole.transactions
    assert len(whole.rows("a")) == 200 + 66 + 40


def test_full_batches_are_taken_within_a_transaction(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a SELECT n, 'text' FROM generate_series(1, 100) n",
        "UPDATE a SET t = 'other'",
        before=("CREATE TABLE a (id integer PRIMARY KEY, t text)", "ALTER TABLE a REPLICA IDENTITY FULL"),
    )

    decoded = decode(data, decoder=new_decoder(batch_rows=7))

    assert decoded.reasons.count(Reason.BATCH_FULL) >= 300 // 8
    assert max(batch.row_count for batch in decoded.batches) <= 8  # an update's two rows are not parted
    rows = decoded.rows("a", everything=True)
    assert [row["_gsn"] for row in rows] == list(range(1, 301))
    assert [row["t"] for row in rows if row["_change_type"] == AFTER] == ["other"] * 100
    numbers = [(batch.first_gsn, batch.last_gsn) for batch in decoded.batches]
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(numbers))


def test_large_rows_are_batches_of_their_own(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a VALUES (1, repeat('é', 500000))",
        "INSERT INTO a VALUES (2, repeat('xyz', 4000000))",
        "UPDATE a SET t = repeat('abc', 4000000), n = 1 WHERE id = 2",
        before=("CREATE TABLE a (id integer PRIMARY KEY, t text, n integer)", "ALTER TABLE a REPLICA IDENTITY FULL"),
    )

    decoded = decode(data)

    assert [batch.row_count for batch in decoded.batches] == [2, 1, 1]
    rows = decoded.rows("a", everything=True)
    assert [(row["_change_type"], len(str(row["t"]))) for row in rows] == [
        (INSERT, 500_000),
        (INSERT, 12_000_000),
        (BEFORE, 12_000_000),
        (AFTER, 12_000_000),
    ]
    assert rows[3]["t"] == "abc" * 4_000_000


def test_rows_of_a_transaction_are_forgotten_until_they_are_taken(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a VALUES (1)",
        "INSERT INTO a VALUES (2), (3)",
        before=("CREATE TABLE a (id integer PRIMARY KEY)",),
    )
    decoder = new_decoder()
    decoder.stop_at_transaction_end = True
    dropped = []
    for reason in feed(decoder, data):
        if reason is Reason.MESSAGE and decoder.message.kind == "R":
            relation = parse_relation(decoder.message.body)
            decoder.define(relation.oid, plan_of(relation))
        if reason is Reason.TRANSACTION_END and decoder.next_gsn == 4:
            dropped.append(decoder.drop_rows(2))
            break

    assert dropped == [True]
    assert (decoder.next_gsn, decoder.pending_rows, decoder.rows) == (2, 1, 1)
    [batch] = decoder.take_batches()
    assert [row["id"] for row in Decoded(batches=[batch]).rows("a")] == [1]
    assert not decoder.drop_rows(1)
    assert decoder.take_gsn() == 2
    assert decoder.take_batches() == []


def test_tables_without_a_plan_and_inactive_ones_are_stepped_over(server: SourceServer) -> None:
    before = ("CREATE TABLE a (id integer PRIMARY KEY)", "CREATE TABLE b (id integer PRIMARY KEY)")
    data = streamed(server, "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)", before=before)

    decoded = decode(data, only=["b"])

    assert [batch.plan.table for batch in decoded.batches] == ["b"]
    decoder = new_decoder()
    for reason in feed(decoder, data):
        if reason is Reason.MESSAGE and decoder.message.kind == "R":
            relation = parse_relation(decoder.message.body)
            plan = plan_of(relation)
            plan.active = relation.name == "a"
            decoder.define(relation.oid, plan)
    assert [batch.plan.table for batch in decoder.take_batches()] == ["a"]


def test_a_row_of_a_table_that_was_not_defined_is_an_error(server: SourceServer) -> None:
    data = streamed(server, "INSERT INTO a VALUES (1)", before=("CREATE TABLE a (id integer PRIMARY KEY)",))

    with pytest.raises(DecodeError, match="not announced") as failed:
        list(feed(new_decoder(), data))

    assert (failed.value.kind, failed.value.column) == ("I", "")
    assert failed.value.relation_oid > 0
    assert failed.value.lsn > 0


def test_a_relation_that_comes_again_is_to_be_defined_again(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a VALUES (1)",
        "ALTER TABLE a ADD n integer",
        "INSERT INTO a VALUES (2, 3)",
        before=("CREATE TABLE a (id integer PRIMARY KEY)",),
    )
    decoder = new_decoder()
    defined = 0

    with pytest.raises(DecodeError, match="not announced"):
        for reason in feed(decoder, data):
            if reason is Reason.MESSAGE and decoder.message.kind == "R" and not defined:
                relation = parse_relation(decoder.message.body)
                decoder.define(relation.oid, plan_of(relation))
                defined += 1

    assert decoder.rows == 1


def test_partitioned_tables_are_one_where_the_publication_says_so(server: SourceServer) -> None:
    data = streamed(
        server,
        "INSERT INTO a VALUES (1, 1), (11, 2)",
        "UPDATE a SET id = 12 WHERE id = 1",
        before=(
            "CREATE TABLE a (id integer PRIMARY KEY, n integer) PARTITION BY RANGE (id)",
            "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE a2 (n integer, dropped text, id integer NOT NULL)",
            "ALTER TABLE a2 DROP dropped",
            "ALTER TABLE a ATTACH PARTITION a2 FOR VALUES FROM (10) TO (20)",
            "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        ),
    )

    rows = decode(data).rows("a", everything=True)

    assert _kinds(rows, "id", "n") == [
        (INSERT, 1, 1, ""),
        (INSERT, 11, 2, ""),
        (DELETE, 1, None, "n"),
        (INSERT, 12, 1, ""),
    ]
