"""Writers of a process on SQLite: each waits for those that came before it."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane_api.database import open_database
from controlplane_api.writers import Writers
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


def test_a_writer_when_its_time_is_over_then_it_goes_on_and_the_one_behind_it_has_its_turn() -> None:
    hurried = Writers(0.0)
    patient, done = Writers(60.0, hurried._lock, hurried._turns), threading.Event()

    def write() -> None:
        with patient.turn():
            done.set()

    thread = threading.Thread(target=write)
    with hurried.turn(), hurried.turn():
        thread.start()
        wait_for("it to wait", lambda: hurried.count == 3)
        assert not done.is_set()
    thread.join()
    assert done.is_set()
    assert hurried.count == 0


def test_writers_when_one_fails_then_the_next_has_its_turn() -> None:
    writers = Writers(60.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"), writers.turn():
            raise ValueError("refused")
    assert writers.count == 0
