"""Damaged streams and answers of a real server lead to rows or to a typed error, however their bytes come.

`make fuzz` does the same with far more of them, guided, and with red zones around all memory.
"""

from random import Random

from tests.fuzz.postgresql import PostgresqlTarget

INPUTS = 10_000
ANSWERS = 2_000


def test_damaged_streams_lead_to_rows_or_to_a_typed_error() -> None:
    target = PostgresqlTarget(Random(7))

    errors = [target.run(target.changes()[0], slowly=True) for _ in range(INPUTS)]

    failed = sum(map(bool, errors))
    assert INPUTS // 4 < failed < INPUTS
    assert len({error.rpartition(": ")[2] for error in errors}) > 20


def test_damaged_answers_lead_to_rows_or_to_a_typed_error() -> None:
    target = PostgresqlTarget(Random(8))

    errors = [target.run(target.answer()[0], slowly=True) for _ in range(ANSWERS)]

    assert ANSWERS // 4 < sum(map(bool, errors)) < ANSWERS


def test_damaged_transactions_in_progress_lead_to_rows_or_to_a_typed_error() -> None:
    target = PostgresqlTarget(Random(9))

    errors = [target.run(target.blocks()[0], slowly=True) for _ in range(ANSWERS)]

    assert ANSWERS // 4 < sum(map(bool, errors)) < ANSWERS
    assert any("BlockError" in error for error in errors)
