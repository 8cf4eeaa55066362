"""What an agent may say of the row number of a table's start."""

import pytest
from menura.v1.changes_pb2 import CutEnd, Position, TableStarted
from menura.v1.config_pb2 import TableName

from gateway.errors import OutOfSequence
from gateway.wire.translation import landed_starts


def end(gsn: int) -> CutEnd:
    start = TableStarted(table=TableName(database="d", table="t"), position=Position(kind="k", text="p"), gsn=gsn)
    return CutEnd(last_gsn=20, started=[start])


@pytest.mark.parametrize("gsn", [0, 11, 20])
def test_start_when_its_number_is_of_the_cut_or_none_then_it_lands(gsn: int) -> None:
    (start,) = landed_starts(end(gsn), after_gsn=10)
    assert (start.database, start.table, start.gsn) == ("d", "t", gsn)


@pytest.mark.parametrize("gsn", [-1, 10, 21])
def test_start_when_its_number_is_outside_of_the_cut_then_it_is_refused(gsn: int) -> None:
    with pytest.raises(OutOfSequence, match="in a cut from 11 to 20"):
        landed_starts(end(gsn), after_gsn=10)
