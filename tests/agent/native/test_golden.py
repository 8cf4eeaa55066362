"""Bytes of real logs that are kept: decoded without a server, value for value what the server printed."""

import json

import pytest

from agent.sources.mysql.native.decoder import BinlogDecoder
from tests.agent.native.capture import decode_all
from tests.compare import SourceColumn, lake_value
from tests.golden import Golden, golden, names


def _words(kept: Golden, chunk: int) -> list[dict[str, object]]:
    decoder = BinlogDecoder(mariadb=kept.mariadb, checksum=True, next_gsn=1, next_transaction_id=1)
    decoded = decode_all(kept.data, mariadb=kept.mariadb, decoder=decoder, chunk=chunk)
    types = {planned.column.name: planned.column.type for planned in decoded.batches[0].plan.columns}
    rows = []
    for row in decoded.table("golden").to_pylist():
        extra = json.loads(row["_unrepresentable"] or "{}")
        words = {}
        for name, type_ in types.items():
            column = SourceColumn(name, type_.kind.value, str(type_), type_.scale, type_.precision)
            words[name] = lake_value(column, row[name], extra.get(name))
        rows.append(words)
    return rows


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_golden_bytes_when_decoded_give_the_servers_words(name: str, chunk: int) -> None:
    kept = golden(name)

    assert _words(kept, chunk) == kept.rows
    assert len(kept.rows) >= 4
