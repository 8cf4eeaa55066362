"""A call that takes long: its end waits for nothing, and who holds its lock is named once."""

import asyncio
import itertools
import threading
from collections.abc import Mapping

import pytest

from gateway import lock_waits
from gateway.lock_waits import told_when_locked
from gateway.registry import LockHolder, RegistryUnavailable
from tests.gateway.scripted_agent import eventually


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_waits, "SLOW_SECONDS", 0.01)


def test_a_call_when_it_ends_while_the_look_at_holders_goes_on_then_its_answer_is_there() -> None:
    looked, let_go = threading.Event(), threading.Event()

    def holders() -> Mapping[LockHolder, str]:
        looked.set()
        let_go.wait(300)
        return {}

    async def scenario() -> str:
        work = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(told_when_locked(work, holders, "calls", lambda: None))
        await eventually("a look", looked.is_set)
        work.set_result("done")
        try:
            return str(await asyncio.wait_for(waiting, 300))
        finally:
            let_go.set()

    assert asyncio.run(scenario()) == "done"


def test_a_holder_when_its_state_changes_and_changes_back_then_it_is_named_once_and_its_next_transaction_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = 0  # at holders alone: whoever waits for them counts none

    def holders() -> Mapping[LockHolder, str]:
        nonlocal looks
        look, looks = looks, looks + 1
        if look == 1:
            raise RegistryUnavailable("away")
        state = "idle" if look % 2 else "active"
        return {LockHolder(7, "now" if look < 10 else "later"): f"process 7, {state}"}

    async def scenario() -> None:
        work, slow = asyncio.get_running_loop().create_future(), itertools.count()
        waiting = asyncio.create_task(told_when_locked(work, holders, "calls", lambda: next(slow) and None))
        await eventually("twenty looks", lambda: looks > 20)
        work.set_result(None)
        await waiting
        assert next(slow) > 0

    asyncio.run(scenario())
    assert caplog.text.count("process 7") == 2


def test_a_call_when_a_look_fails_as_none_should_then_that_is_raised() -> None:
    def holders() -> Mapping[LockHolder, str]:
        raise LookupError("a defect")

    async def scenario() -> None:
        work = asyncio.get_running_loop().create_future()
        with pytest.raises(LookupError, match="a defect"):
            await told_when_locked(work, holders, "calls", lambda: None)
        assert work.cancelled()

    asyncio.run(scenario())
