"""Answers of routes that read, told as they change: one look for all who wait for the same one.

Comes in: addresses as a page asks them, of routes that `roles.LIVE` names. Goes out: texts of server-sent events, each
with an address's whole answer. What is followed with the same grants at the same address is asked once for all, of the
route itself, so that a reader gets what he would get if he asked; rows are asked for each caller, whom the audit log
names. It is asked when something was committed, at most every `LOOK_SECONDS`, and every `REST_SECONDS` without that:
that an agent is silent is told by the clock alone. It is told where more than ages differ, which whoever shows them
counts on by himself.

A reader who waits holds neither a turn, nor a thread, nor a connection to the database. Whoever comes is told of a look
that was begun after that, so nothing is lost between two streams. Whose token or session ends, or has other roles, has
his stream ended within `CHECK_SECONDS` and a look. Nothing is durable.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from controlplane_api.api.authentication import Known, good_still
from controlplane_api.api.paths import Command
from controlplane_api.api.route_rules import Rule, matching
from controlplane_api.commits import Commits
from controlplane_api.database import Database
from controlplane_api.errors import DatabaseError, RequestInvalid, RoleMissing, StreamsTooMany
from controlplane_api.identity.callers import Grant, Need
from gateway.loop_turns import Owner
from gateway.shares import Shares, Turns

logger = logging.getLogger(__name__)

#: of all, of which one caller may have a third and one tenant a half
MAX_STREAMS = 3_000
#: of one stream
MAX_ADDRESSES, MAX_ADDRESS_CHARS = 12, 8_192
#: of one answer, and of all; what is larger its readers ask for by themselves, each time that it has changed
MAX_ANSWER_BYTES, MAX_KEPT_BYTES = 512 << 10, 64 << 20
#: looks at a time, and of one tenant
LOOKS, LOOKS_OF_TENANT = 4, 2
LOOK_SECONDS, REST_SECONDS = 1.0, 5.0
#: of the time that a look may take: where it takes longer, it is less frequent
MOST_BUSY = 0.25
#: between two questions whether anything was committed, and whether callers are known still
COMMIT_SECONDS, CHECK_SECONDS = 0.5, 2.0
#: an event that says nothing else than that the stream is there, so that nobody between takes the connection for dead
BEAT_SECONDS = 10.0
BEAT = "event: beat\ndata: {}\n\n"

#: in JSON, figures that grow with time alone; also when a tenant's fleet was asked for
_AGES = re.compile(rb'"(?:freshness_us|age_us|oldest_proof_age_us)":\d+|\A\{"tenant":"[a-z0-9_-]+","at_us":\d+')


@dataclass(eq=False, slots=True)
class Reader:
    known: Known
    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    #: which of his addresses have an answer that he was not told of
    due: set[int] = field(default_factory=set)
    is_over: bool = False

    def tell(self, number: int) -> None:
        self.due.add(number)
        self.stirred.set()

    def end(self) -> None:
        self.is_over = True
        self.stirred.set()


@dataclass(frozen=True, slots=True)
class Key:
    """Who follow the same get the same."""

    tenant: str
    address: str
    #: the address as the audit log names it
    found: str
    grants: tuple[Grant, ...]
    #: of an answer with rows, whose readers stand in the audit log each; else empty
    actor: str
    #: it has that service's turns
    asks_search_service: bool


@dataclass(eq=False, slots=True)
class Followed:
    """An address and its readers."""

    key: Key
    #: who came first, in whose name it is asked
    known: Known
    #: each with the number that the address has among his
    readers: dict[Reader, int] = field(default_factory=dict)
    #: who came after the last look was begun
    newcomers: set[Reader] = field(default_factory=set)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    digest: bytes = b""
    #: JSON; empty: a refusal, or too large
    answer: str = ""

    @property
    def owner(self) -> Owner:
        return self.key.tenant, self.known.caller.actor

    def add(self, reader: Reader, number: int) -> None:
        self.readers[reader] = number
        self.newcomers.add(reader)
        self.wanted.set()

    def tell(self, readers: Iterable[Reader]) -> None:
        for reader in readers:
            if reader in self.readers:
                reader.tell(self.readers[reader])


class Live:
    """Of one API process; used from its event loop alone."""

    def __init__(self, app: ASGIApp, rules: Sequence[Rule], state: Mapping[str, object], database: Database) -> None:
        """`app`, `state`: the routes behind the gate, and what each of them gets."""
        self._app = app
        self._rules = rules
        self._state = state
        self._database = database
        self._commits = Commits(database)
        self._streams = Shares(MAX_STREAMS)
        self._kept = Shares(MAX_KEPT_BYTES)
        self._turns = Turns(LOOKS, LOOKS_OF_TENANT)
        self._readers: set[Reader] = set()
        self._followed: dict[Key, tuple[Followed, asyncio.Task[None]]] = {}
        self._watching: asyncio.Task[None] | None = None

    def keys(self, tenant: str, known: Known, addresses: Iterable[str]) -> list[Key]:
        """Raises `RequestInvalid`, `RoleMissing`, `StreamsTooMany`."""
        keys = [self._key(tenant, known, address) for address in dict.fromkeys(addresses)]
        if not self._streams.has_room((tenant, known.caller.actor)):
            raise StreamsTooMany(
                "opening a stream of answers",
                "its caller or tenant has as many open as there may be",
                remedy="Close one, or ask again and again.",
            )
        return keys

    def _key(self, tenant: str, known: Known, address: str) -> Key:
        path, doing = address.partition("?")[0], "following answers"
        there = [(rule, match) for rule, match in matching(self._rules, path) if rule.is_live]
        named = there[0][1].groupdict().get("tenant") if there else None
        if not there or (named is not None and unquote(named) != tenant):
            raise RequestInvalid(doing, "an address is none of this tenant that can be followed", remedy="Ask for it.")
        rule = there[0][0]
        if not known.caller.may(rule.need, tenant):
            raise RoleMissing(
                doing,
                f"{known.caller.actor} has no role for this: {rule.need}",
                data="Nothing was changed.",
                remedy="Use a token with another role.",
            )
        _, _, below = path.partition("/api/v1/" if named is None else f"/{named}/")
        actor = known.caller.actor if rule.need is Need.READ_ROWS else ""
        return Key(tenant, address, unquote(below), known.caller.grants, actor, rule.asks_search_service)

    @contextmanager
    def one_of(self, owner: Owner) -> Iterator[None]:
        self._streams.change(owner, 1)
        try:
            yield
        finally:
            self._streams.change(owner, -1)

    async def texts(self, known: Known, keys: Sequence[Key]) -> AsyncGenerator[str, None]:
        """Events: of each address its answer, first and each time that it is another one, with the address's number."""
        reader = Reader(known)
        yield BEAT
        with self._reading(reader, keys) as followed:
            while not reader.is_over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_SECONDS):
                        await reader.stirred.wait()
                reader.stirred.clear()
                due, reader.due = reader.due, set()
                for text in [] if reader.is_over else [_event(number, followed[number]) for number in due] or [BEAT]:
                    yield text

    @contextmanager
    def _reading(self, reader: Reader, keys: Sequence[Key]) -> Iterator[list[Followed]]:
        self._readers.add(reader)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        for key in keys:
            if key not in self._followed:
                followed = Followed(key, reader.known)
                self._followed[key] = followed, asyncio.create_task(self._look_again_and_again(followed))
        found = [self._followed[key][0] for key in keys]
        for number, followed in enumerate(found):
            followed.add(reader, number)
        try:
            yield found
        finally:
            self._readers.remove(reader)
            for key, followed in zip(keys, found, strict=True):
                del followed.readers[reader]
                if not followed.readers:
                    self._followed.pop(key)[1].cancel()
                    self._keep(followed, "")

    async def _look_again_and_again(self, followed: Followed) -> None:
        """Until it is cancelled, with the last reader."""
        loop = asyncio.get_running_loop()
        while True:
            followed.wanted.clear()
            newcomers, followed.newcomers = followed.newcomers, set()
            began_at = loop.time()
            status, body = await self._ask(followed)
            digest = hashlib.sha256(b"%d" % status + _AGES.sub(b"", body)).digest()
            is_other, followed.digest = digest != followed.digest, digest
            # also where ages alone differ: whoever comes new shall have those of now
            self._keep(followed, body.decode() if status == 200 and len(body) <= MAX_ANSWER_BYTES else "")
            followed.tell(followed.readers.keys() - followed.newcomers if is_other else newcomers)
            await asyncio.sleep(max(LOOK_SECONDS, (loop.time() - began_at) / MOST_BUSY))
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    await followed.wanted.wait()

    def _keep(self, followed: Followed, answer: str) -> None:
        """Within what there may be of all."""
        self._kept.change(followed.owner, -len(followed.answer))
        followed.answer = answer if self._kept.has_room(followed.owner) else ""
        self._kept.change(followed.owner, len(followed.answer))

    async def _ask(self, followed: Followed) -> tuple[int, bytes]:
        """Status and body, of the route; in a turn of the tenant, and of who came first."""
        status, body = 500, bytearray()

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        async def receive() -> Message:
            await asyncio.Event().wait()  # neither a body nor an end
            raise AssertionError

        try:
            async with nullcontext() if followed.key.asks_search_service else self._turns.of(followed.owner):
                await self._app(self._scope(followed), receive, send)
        except Exception:
            logger.exception("following %s failed: report it; its readers ask for themselves", followed.key.address)
            return 500, b""
        return status, bytes(body)

    def _scope(self, followed: Followed) -> Scope:
        key, known = followed.key, followed.known
        path, _, query = key.address.partition("?")
        command = Command(known.caller, key.tenant, "", key.found)
        own: dict[str, Any] = {"database": self._database, "caller": known.caller, "known": known, "command": command}
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "root_path": "", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": [],
            "client": None, "server": None, "state": {**self._state, **own},
        }  # fmt: skip

    async def _watch(self) -> None:
        """Over commits and callers, while there are readers."""
        loop = asyncio.get_running_loop()
        mark, checked_at = "", loop.time()
        try:
            while self._readers:
                before, mark = mark, await asyncio.to_thread(self._mark)
                if not mark or mark != before:
                    for followed, _ in self._followed.values():
                        followed.wanted.set()
                if loop.time() - checked_at >= CHECK_SECONDS:
                    checked_at = loop.time()
                    await self._end_unknown()
                await asyncio.sleep(COMMIT_SECONDS)
        finally:
            await asyncio.shield(asyncio.to_thread(self._commits.close))
            for reader in self._readers:  # of none where all went well
                reader.end()

    def _mark(self) -> str:
        """Empty: the database does not say; who asks it is told why."""
        try:
            return self._commits.mark()
        except DatabaseError:
            return ""

    async def _end_unknown(self) -> None:
        """Of readers whose token or session is not good any more, or has other roles; also where nobody can say."""
        shown = {reader.known for reader in self._readers}

        def look() -> set[Known]:
            with self._database.read() as connection:
                return good_still(connection, shown)

        try:
            good = await asyncio.to_thread(look)
        except DatabaseError as away:
            logger.warning("streams of answers end, since it can't be said who is known still: %s", away)
            good = set()
        for reader in self._readers:
            if reader.known in shown - good:
                reader.end()


def _event(number: int, followed: Followed) -> str:
    answer = f',"answer":{followed.answer}' if followed.answer else ""
    return f'data: {{"number":{number}{answer}}}\n\n'
