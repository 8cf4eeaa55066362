"""Writers of a process on SQLite: each waits for those that came before it."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, text

from controlplane_api.database import BUSY_SECONDS, Database, open_database
from controlplane_api.errors import DatabaseUnavailable
from controlplane_api.writers import TurnTimeout, Writers
from tests.stack import wait_for


def test_writers_when_several_wait_then_they_have_their_turns_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    database, wrote = open_database(f"sqlite:///{tmp_path / 'control.db'}"), []

    def write(number: int) -> None:
        with database.write():
            wrote.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    with database.write() as connection:
        connection.execute(text("SELECT 1"))
        for number, thread in enumerate(threads):
            thread.start()
            wait_for("it to wait", lambda least=number + 2: database._writers.count == least)
        with database.read() as reading:  # no reader waits for them
            reading.execute(text("SELECT 1"))
        assert wrote == []
    for thread in threads:
        thread.join()
    assert wrote == [0, 1, 2, 3, 4]
    assert database._writers.count == 0
    database.close()


def test_a_writer_when_its_time_is_over_then_it_fails_and_the_one_behind_it_has_its_turn() -> None:
    hurried = Writers(0.0)
    patient, done = Writers(60.0, hurried._lock, hurried._turns), threading.Event()
    goes_on = threading.Event()

    def write() -> None:
        with patient.turn():
            done.set()

    def write_in_a_hurry() -> None:
        wait_for("the other to wait", lambda: hurried.count == 2)
        with pytest.raises(TurnTimeout), hurried.turn():
            pass
        goes_on.set()

    threads = [threading.Thread(target=write), threading.Thread(target=write_in_a_hurry)]
    with hurried.turn():
        for thread in threads:
            thread.start()
        wait_for("it to fail", goes_on.is_set)
        assert not done.is_set()
        assert hurried.count == 2
    for thread in threads:
        thread.join()
    assert done.is_set()
    assert hurried.count == 0


def test_a_writer_when_its_turn_does_not_come_in_time_then_it_fails_as_where_the_file_is_locked(tmp_path: Path) -> None:
    opened, failures = open_database(f"sqlite:///{tmp_path / 'control.db'}"), []
    here, elsewhere = (Database(opened.engine, Writers(0.0)) for _ in range(2))
    with here.write():
        for database in (here, elsewhere):  # of this process, and as one of another process
            with pytest.raises(DatabaseUnavailable) as raised, database.write():
                pass
            failures.append(str(raised.value))
    assert "database is locked" in failures[0]
    assert failures[0] == failures[1]
    opened.close()


def test_a_writer_when_it_has_its_turn_then_it_waits_for_the_file_what_is_left_of_its_time(tmp_path: Path) -> None:
    database, told = open_database(f"sqlite:///{tmp_path / 'control.db'}"), []

    def tell(*execution: object) -> None:
        told.append(execution[2])

    class Waited(Writers):
        @contextmanager
        def turn(self) -> Iterator[float]:
            yield 1.5

    event.listen(database.engine, "before_cursor_execute", tell)
    with Database(database.engine, Waited(20.0)).write() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == BUSY_SECONDS * 1000
    assert told[:3] == ["PRAGMA busy_timeout=1500", "BEGIN IMMEDIATE", f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}"]
    database.close()


@pytest.mark.parametrize("has_its_place", [False, True])
def test_a_writer_when_it_is_interrupted_where_it_takes_its_place_then_none_is_left(has_its_place: bool) -> None:
    class Interrupted(deque[threading.Lock]):
        def append(self, turn: threading.Lock) -> None:
            if has_its_place:
                super().append(turn)
            raise KeyboardInterrupt

    writers = Writers(60.0, _turns=Interrupted())
    with pytest.raises(KeyboardInterrupt), writers.turn():
        pass
    assert writers.count == 0


def test_writers_when_one_fails_then_the_next_has_its_turn() -> None:
    writers = Writers(60.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"), writers.turn():
            raise ValueError("refused")
    assert writers.count == 0
