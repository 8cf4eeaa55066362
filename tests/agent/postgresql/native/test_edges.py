"""The stream's frame: keepalives, errors, its end, and bytes that are no stream. Written by hand."""

import struct
from random import Random

import pyarrow as pa
import pytest
from menura.change_batch import Compression

from agent.columnar.encode import encode
from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.native.decoder import DecodeError, PgoutputDecoder, PlannedColumn, Reason, TablePlan
from agent.sources.postgresql.native.floats import float4, float8
from agent.sources.postgresql.types import ColumnType, Form
from gateway.wire.arrow import read_stream
from tests.agent.postgresql.native.capture import feed, new_decoder

OID = 16385
#: 2024-01-01 00:00:00 UTC, as the stream counts time and as we do
THEN = 757382400 * 1_000_000
THEN_US = 1704067200 * 1_000_000


def frame(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack(">I", len(body) + 4) + body


def wal(message: bytes, lsn: int = 0x1_0000_0010) -> bytes:
    return frame("d", b"w" + struct.pack(">QQQ", lsn, lsn, THEN) + message)


def keepalive(end: int, *, wants_answer: bool = False) -> bytes:
    return frame("d", b"k" + struct.pack(">QQB", end, THEN, wants_answer))


def begin(lsn: int = 0x1_0000_0080, xid: int = 77) -> bytes:
    return wal(b"B" + struct.pack(">QQI", lsn, THEN, xid))


def commit(lsn: int = 0x1_0000_0080) -> bytes:
    return wal(b"C" + struct.pack(">BQQQ", 0, lsn, lsn + 48, THEN))


def values(*fields: str | None) -> bytes:
    parts = [
        b"n" if field is None else b"t" + struct.pack(">I", len(field.encode())) + field.encode() for field in fields
    ]
    return struct.pack(">H", len(fields)) + b"".join(parts)


def insert(*fields: str | None, oid: int = OID) -> bytes:
    return wal(b"I" + struct.pack(">I", oid) + b"N" + values(*fields))


def plan(*forms: Form, precision: int = 0, scale: int = 0) -> TablePlan:
    columns = [Column(f"c{number}", ColumnType(form.name, form, precision, scale)) for number, form in enumerate(forms)]
    return TablePlan(
        "public", "t", "", [PlannedColumn(column, identity=number == 0) for number, column in enumerate(columns)]
    )


def decoded(*messages: bytes, table: TablePlan | None = None) -> tuple[PgoutputDecoder, list[Reason]]:
    decoder = new_decoder()
    decoder.define(OID, table or plan(Form.INT4, Form.TEXT))
    return decoder, list(feed(decoder, b"".join(messages)))


def test_keepalives_move_the_position_outside_of_transactions_alone() -> None:
    decoder, reasons = decoded(keepalive(100), begin(), keepalive(0x2_0000_0000), insert("1", "a"))
    assert (decoder.finished_lsn, decoder.server_end_lsn, reasons) == (100, 0x2_0000_0000, [])

    reasons = list(feed(decoder, commit() + keepalive(200, wants_answer=True) + keepalive(0x3_0000_0000)))

    assert reasons == [Reason.KEEPALIVE]
    assert decoder.finished_lsn == decoder.server_end_lsn == 0x3_0000_0000
    assert decoder.take_transactions() == [(77, 0x1_0000_0080, 0x1_0000_00B0)]
    assert decoder.commit_timestamp_us == THEN_US


def test_the_end_of_a_transaction_is_its_position_until_a_later_one() -> None:
    decoder, _ = decoded(begin(), commit(), keepalive(5))

    assert decoder.finished_lsn == 0x1_0000_00B0


def test_an_error_of_the_server_has_its_fields() -> None:
    fields = b"SFATAL\0C57P01\0Mterminating connection\0\0"

    decoder, reasons = decoded(frame("N", b"SNOTICE\0\0"), frame("S", b"TimeZone\0UTC\0"), frame("E", fields))

    assert reasons == [Reason.ERROR]
    assert decoder.error == {"S": "FATAL", "C": "57P01", "M": "terminating connection"}


@pytest.mark.parametrize("kind", ["c", "C", "Z"])
def test_the_copys_end_is_the_streams(kind: str) -> None:
    assert decoded(begin(), commit(), frame(kind, b""))[1] == [Reason.END_OF_STREAM]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"d\0\0\0\3", "impossible length"),
        (b"d\xff\xff\xff\xff", "impossible length"),
        (frame("d", b""), "neither WAL data nor a keepalive"),
        (frame("d", b"x"), "neither WAL data nor a keepalive"),
        (frame("x", b""), "unknown kind"),
        (frame("d", b"w" + bytes(24)), "inside their head"),
        (frame("d", b"k" + bytes(16)), "keepalive of another length"),
        (wal(b"B" + bytes(19)), "begin of a transaction of another length"),
        (begin() + begin(), "before the one before it has ended"),
        (wal(b"C" + bytes(26)), "end of a transaction of another length"),
        (commit(), "has not begun"),
        (begin() + commit(0x80), "has not begun"),
        (insert("1", "a"), "outside of a transaction"),
        (begin() + wal(b"I\0\0\x40"), "before its tuple"),
        (begin() + insert("1", "a", oid=1), "not announced"),
        (begin() + insert("1"), "another number of columns"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N\0"), "inside its number of columns"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"K" + values("1", "a")), "without a new tuple"),
        (begin() + wal(b"U" + struct.pack(">I", OID) + b"K" + values("1", "a")), "without a new tuple"),
        (begin() + wal(b"D" + struct.pack(">I", OID) + b"N" + values("1", "a")), "without an old tuple"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N\0\2n"), "ends inside its columns"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N\0\2nb\0\0\0\0"), "unknown kind"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N\0\2nt\0\0\0\2a"), "ends inside a value"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N\0\2nt\xff\xff\xff\xffa"), "ends inside a value"),
        (begin() + wal(b"I" + struct.pack(">I", OID) + b"N" + values("1", "a") + b"n"), "longer than its tuple"),
        (begin() + insert("1x", "a"), "integer that is none"),
        (begin() + wal(b"R\0\0\0"), "relation that ends"),
    ],
)
def test_what_is_no_stream_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decoded(message)


def test_an_error_names_its_place_and_no_value() -> None:
    with pytest.raises(DecodeError) as failed:
        decoded(begin(), wal(b"I" + struct.pack(">I", OID) + b"N" + values("secret", "a"), lsn=99))

    error = failed.value
    assert (error.kind, error.lsn, error.relation_oid, error.column) == ("I", 99, OID, "c0")
    assert str(error) == "public.t, column c0: an integer that is none"


def test_rows_before_one_that_fails_stay() -> None:
    decoder = new_decoder()
    decoder.define(OID, plan(Form.INT4, Form.TEXT))
    with pytest.raises(DecodeError):
        list(feed(decoder, begin() + insert("1", "a") + insert(None, "ž") + insert("3", "c") + insert("4x", "d")))

    [batch] = decoder.take_batches()

    assert pa.record_batch(batch.rows).to_pydict()["c1"] == ["a", "ž", "c"]
    assert (batch.row_count, batch.last_gsn, decoder.rows) == (3, 3, 3)


def test_unknown_messages_are_handed_over() -> None:
    decoder, reasons = decoded(begin(), wal(b"~whatever", lsn=5), commit())

    assert reasons == [Reason.MESSAGE]
    assert (decoder.message.kind, decoder.message.body, decoder.message.lsn) == ("~", b"whatever", 5)


def test_text_that_is_no_utf8_is_shown_as_its_bytes() -> None:
    broken = wal(b"I" + struct.pack(">I", OID) + b"N\0\2nt\0\0\0\4caf\xe9")
    decoder, _ = decoded(begin(), broken, commit())

    [batch] = decoder.take_batches()

    assert pa.record_batch(batch.rows).to_pylist()[0]["_unrepresentable"] == '{"c1":"0x636166E9"}'


def test_booleans_travel_as_bits() -> None:
    chance = Random(1)
    for count in (1, 7, 8, 9, 64, 1000):
        wanted = [chance.choice((True, False, None)) for _ in range(count)]
        rows = [insert(None if value is None else "tf"[not value], str(value)) for value in wanted]
        decoder, _ = decoded(begin(), *rows, commit(), table=plan(Form.BOOL, Form.TEXT))
        [batch] = decoder.take_batches()
        assert pa.record_batch(batch.rows).to_pydict()["c0"] == wanted

        encoded = encode(batch, Compression.LZ4)

        read = read_stream(b"".join(encoded.rows), encoded.rows_bytes, lambda schema: None)
        assert read.to_pydict()["c0"] == wanted


def test_booleans_that_were_forgotten_leave_nothing_behind() -> None:
    decoder = new_decoder()
    decoder.define(OID, plan(Form.BOOL, Form.TEXT))
    list(feed(decoder, begin() + insert("f", "a") + insert("t", "b") + insert("t", "c")))
    assert decoder.drop_rows(2)
    list(feed(decoder, insert("f", "d") + insert(None, "e") + insert("t", "f")))

    [batch] = decoder.take_batches()

    assert pa.record_batch(batch.rows).to_pydict()["c0"] == [False, False, None, True]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((Form.BOOL, text) for text in ("", "true", "x")),
        *((Form.INT2, text) for text in ("", "-", "32768", "-32769", "+1", " 1", "1.0", "0x1")),
        *((Form.INT8, text) for text in ("9223372036854775808", "-9223372036854775809", "99999999999999999999")),
        *((Form.UINT4, text) for text in ("-1", "4294967296", "")),
        *((Form.FLOAT4, text) for text in ("", "1e39", "nan", "1_0", "-")),
        *((Form.FLOAT8, text) for text in ("", "1e309", "inf", "1e", "0x1p3", "1" * 401)),
        *((Form.DECIMAL, text) for text in ("", "-", ".", "1e5", "1,5", "--1", "nan", "1.2.3")),
        *((Form.BYTES, text) for text in ("", "\\x0", "\\xgg", "abc", "\\000")),
        *(
            (Form.DATE, text)
            for text in ("", "2024-02-30", "2024-1-01", "0000-01-01", "24-01-01", "2024-01-01 00:00:00")
        ),
        *((Form.TIMESTAMP, text) for text in ("2024-01-01", "2024-01-01 25:00:00", "2024-01-01 00:00:00+00")),
        *(
            (Form.TIMESTAMP, text)
            for text in ("2024-01-01T00:00:00", "2024-01-01 00:00:00.", "2024-01-01 00:00:00.1234567")
        ),
        *(
            (Form.TIMESTAMPTZ, text)
            for text in ("2024-01-01 00:00:00", "2024-01-01 00:00:00+0", "2024-01-01 00:00:00+00:")
        ),
        *((Form.TIME, text) for text in ("", "24:00:00.000001", "12:60:00", "12:00", "12:00:00+00")),
    ],
)
def test_text_that_is_no_value_of_its_type_is_refused(form: Form, text: str) -> None:
    with pytest.raises(DecodeError, match="column c0"):
        decoded(begin(), insert(text, None), table=plan(form, Form.TEXT, precision=9, scale=2))


@pytest.mark.parametrize(
    ("precision", "scale", "text", "value"),
    [
        (9, 2, "1.50", "1.50"),
        (9, 2, "1.5", "1.50"),
        (9, 2, "1", "1.00"),
        (9, 2, ".5", "0.50"),
        (9, 2, "-0.00", "0.00"),
        (9, 2, "0000000000000000000000001.50", "1.50"),
        (9, 2, "1.5000000000000000000000000", "1.50"),
        (9, 2, "1.501", None),
        (9, 2, "12345678.00", None),
        (38, 0, "9" * 39, None),
        (38, 38, "1.0", None),
        (20, 0, "-18446744073709551616", "-18446744073709551616"),
    ],
)
def test_decimals_are_exact_or_shown_as_text(precision: int, scale: int, text: str, value: str | None) -> None:
    table = plan(Form.DECIMAL, Form.TEXT, precision=precision, scale=scale)
    decoder, _ = decoded(begin(), insert(text, None), table=table)

    [batch] = decoder.take_batches()

    [row] = pa.record_batch(batch.rows).to_pylist()
    shown = None if row["c0"] is None else f"{row['c0']:f}"
    assert (shown, row["_unrepresentable"]) == (value, None if value is not None else f'{{"c0":"{text}"}}')


def test_time_zones_but_utc_are_reckoned() -> None:
    texts = [
        "2024-01-01 00:30:00+00",
        "2024-01-01 02:30:00+02",
        "2023-12-31 19:00:00-05:30",
        "2024-01-01 00:30:30+00:00:30",
    ]
    decoder, _ = decoded(begin(), *(insert(text, None) for text in texts), table=plan(Form.TIMESTAMPTZ, Form.TEXT))

    [batch] = decoder.take_batches()

    assert pa.record_batch(batch.rows).column("c0").cast(pa.int64()).to_pylist() == [THEN_US + 1_800_000_000] * 4


def test_floats_are_the_nearest_to_their_text() -> None:
    chance = Random(3)
    for _ in range(20_000):
        number = struct.unpack("<d", chance.randbytes(8))[0]
        texts = [
            repr(number),
            f"{chance.getrandbits(64)}e{chance.randint(-360, 288)}",
            f"{chance.random():.{chance.randrange(20)}f}",
        ]
        for text in (text for text in texts if "n" not in text):
            assert float8(text.encode()) == float(text)
    for text in (
        "5e-324",
        "2.4703282292062328e-324",
        "2.4703282292062327e-324",
        "9007199254740993",
        "1e23",
        "0.1",
        "-0",
    ):
        assert repr(float8(text.encode())) == repr(float(text))


def test_floats_of_four_bytes_are_rounded_once() -> None:
    # between two floats, and by less than a double tells beyond it
    assert float4(b"1.00000005960464477539062500") == 1.0
    assert float4(b"1.00000005960464477539062501") == 1.0000001192092896
    assert float4(b"1.00000017881393432617187499") == 1.0000001192092896
    assert float4(b"1.00000017881393432617187500") == 1.000000238418579
    assert float4(b"7.006492321624085e-46") == 0.0
    assert float4(b"7.006492321624086e-46") == float4(b"1e-45") == 1.401298464324817e-45
    assert (float4(b"3.4028235e38"), float4(b"3.4028236e38")) == (3.4028234663852886e38, None)
