"""Pipes that run beside each other, each in a thread of its own.

Comes in: the pipes' configuration. Goes out: what each writes. First all are made, each in its thread: one that can't
be is an error, and none has begun. Then each follows the lake (`spark_sink.export.following`, which says what is
durable and what a kill leaves), so that none waits for another's broker. A bug in one ends all; the next start begins
each where it was.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from menura.stores.address import absolute

from spark_sink.export.feed import Feed
from spark_sink.export.fields import FieldOf, avro_field_of, field_of, native
from spark_sink.export.following import Consumer, Follower, follow
from spark_sink.export.lake_access import check_tables, store_failures
from spark_sink.pipes.configuration import Messages, PipeConfig, PipeFormat, PipesConfig
from spark_sink.pipes.producers import consumer_of
from spark_sink.pipes.standings import StatusFile

logger = logging.getLogger("menura.export")


@dataclass(frozen=True, slots=True)
class Pipe:
    follower: Follower[Consumer]
    status: StatusFile

    def follow(self, stop: threading.Event, poll_seconds: float | None) -> int:
        try:
            return follow([self.follower], stop, poll_seconds)
        finally:
            self.status.close()

    def close(self) -> None:
        self.follower.close()
        self.status.close()


def run(
    config: PipesConfig, stop: threading.Event, poll_seconds: float | None, retry_seconds: float | None = None
) -> int:
    """Until somebody stops them; without `poll_seconds` until there is nothing new, nor to be tried again.

    `retry_seconds`: how long what fails is tried again; None: until somebody stops them. Gives the exit code: that of a
    pipe that was stopped, or of a table that is left out. Raises `SinkError` before any pipe has begun.
    """
    with ExitStack() as threads:
        own = [threads.enter_context(ThreadPoolExecutor(1, each.name)) for each in config.pipes]
        made = [
            thread.submit(prepare, config, each, retry_seconds) for thread, each in zip(own, config.pipes, strict=True)
        ]
        pipes = _all_or_none(made, own)
        tasks = [thread.submit(pipe.follow, stop, poll_seconds) for thread, pipe in zip(own, pipes, strict=True)]
        wait(tasks, return_when=FIRST_EXCEPTION)
        if any(task.done() and task.exception() is not None for task in tasks):
            stop.set()
        codes = [task.result() for task in tasks]
    for follower in (pipe.follower for pipe in pipes):
        cuts = ", ".join(f"{'/'.join(source)}:{cut}" for source, cut in sorted(follower.feed.position.cuts.items()))
        state = "stopped" if follower.stopped is not None else "ended"
        logger.info("%s %s, up to cut %s", follower.consumer.name, state, cuts or "none")
    return max(codes, default=0)


def _all_or_none(made: Sequence[Future[Pipe]], threads: Sequence[ThreadPoolExecutor]) -> list[Pipe]:
    """Raises what one has raised; those that were made are closed then, each in its own thread."""
    wait(made)
    if all(each.exception() is None for each in made):
        return [each.result() for each in made]
    for each, thread in zip(made, threads, strict=True):
        if each.exception() is None:
            thread.submit(each.result().close).result()
    raise next(failure for each in made if (failure := each.exception()) is not None)


def prepare(config: PipesConfig, pipe: PipeConfig, retry_seconds: float | None = None) -> Pipe:
    """Raises `SinkError`."""
    lake, folder = absolute(config.lake), config.positions / pipe.name
    named, sources = pipe.selection.named, pipe.selection.sources
    with store_failures():
        check_tables(lake, named, sources)
    feed = Feed(lake, (), sources, fields=_fields(pipe.messages), chosen=pipe.selection.has)
    consumer = consumer_of(pipe, folder)  # which has the folder
    status = StatusFile(folder, pipe.producer)
    return Pipe(Follower(consumer, feed, pipe.on_error, pipe.begin, status.tell, retry_seconds), status)


def _fields(messages: Messages | None) -> FieldOf:
    if messages is None:
        return native
    kind = avro_field_of if messages.format == PipeFormat.AVRO else field_of
    return partial(kind, decimals=messages.decimals, bigints=messages.bigints)
