"""A step of the feed as calls of one plug-in, transaction by transaction.

Comes in: a `Step`. Goes out: calls of the plug-in. Nothing is durable here but what the plug-in makes so. A call that
fails, and a run that is to stop, roll the open transaction back, and the step is told again from its beginning: what a
dump read at one position comes in another order each time, so no place in the middle can be kept.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb

from spark_sink.errors import PluginFailed
from spark_sink.export import following
from spark_sink.export.envelope import CREATE, DELETE, READ, UPDATE, Message
from spark_sink.export.feed import Step, TableStep
from spark_sink.plugins.plugin import Change, Plugin, PluginError, Transaction, Values
from spark_sink.work import TableId

#: frames that are no plug-in's
OWN_FILES = (__file__, str(Path(__file__).with_name("running.py")), following.__file__)


@dataclass(slots=True)
class Delivery:
    """To one plug-in."""

    name: str
    plugin: Plugin
    #: what `ddl` was told
    _columns: dict[TableId, tuple[dict[str, str], tuple[str, ...]]] = field(default_factory=dict)

    def deliver(self, step: Step, stop: threading.Event) -> bool:
        """All of the step; False: it was to stop before its end.

        Raises `PluginFailed`; errors of the lake's store.
        """
        self._tell_columns(step)
        opened: Transaction | None = None
        gsn = 0
        try:
            for of, message in step.messages():
                if message.value is None:
                    continue
                found = _transaction(of.envelope.table, message)
                if found != opened:
                    if opened is not None:
                        self._commit(opened, gsn)
                        opened = None
                    if stop.is_set():
                        return False
                    with self.calling("begin"):
                        self.plugin.begin(found)
                    opened = found
                gsn = message.gsn
                self._tell(of, message, found)
            if opened is not None:
                self._commit(opened, gsn)
        except BaseException:
            if opened is not None:
                with self.calling("rollback"):
                    self.plugin.rollback(opened)
            raise
        return True

    def checkpoint(self, position: str) -> None:
        """Behind all of the step. Raises `PluginFailed`."""
        with self.calling("checkpoint"):
            self.plugin.checkpoint(position)

    def close(self) -> None:
        """Raises `PluginFailed`."""
        with self.calling("close"):
            self.plugin.close()

    def _commit(self, transaction: Transaction, gsn: int) -> None:
        with self.calling("commit"):
            self.plugin.commit(transaction, gsn)

    def _tell_columns(self, step: Step) -> None:
        for of in (of for source in step.sources for of in source):
            table = of.envelope.table
            found = {name: column.type for name, column in of.envelope.shape.fields().items()}, of.envelope.shape.key
            if self._columns.get(table) != found:
                with self.calling("ddl"):
                    self.plugin.ddl(table, *found)
                self._columns[table] = found

    def _tell(self, of: TableStep, message: Message, transaction: Transaction) -> None:
        table, plugin = of.envelope.table, self.plugin
        if message.op in (CREATE, READ):
            with self.calling("insert"):
                plugin.insert(*_image("after", table, message, transaction))
        elif message.op == UPDATE:
            if message.value is not None and message.value["before"] is not None:
                with self.calling("update_before"):
                    plugin.update_before(*_image("before", table, message, transaction))
            with self.calling("update_after"):
                plugin.update_after(*_image("after", table, message, transaction))
        elif message.op == DELETE:
            with self.calling("delete"):
                plugin.delete(*_image("before", table, message, transaction))
        else:
            with self.calling("truncate"):
                plugin.truncate(_image("before", table, message, transaction)[1])

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Says where the plug-in failed, and no value of a row, which its exceptions may hold."""
        try:
            yield
        except Exception as failure:
            words = f"{method}: {failure}" if isinstance(failure, PluginError) else where_raised(method, failure)
            raise PluginFailed(
                f"calling plug-in {self.name}",
                words,
                data="What it has not committed comes again",
                remedy="Mend the plug-in, then start its command again; --debug prints what was raised",
            ) from failure


def where_raised(method: str, failure: Exception, own_files: Sequence[str] = OWN_FILES) -> str:
    """With the plug-in's own line, and without the exception's text."""
    lines = (line for line in extract_tb(failure.__traceback__) if line.filename not in own_files)
    place = next((f" at {Path(line.filename).name}:{line.lineno}" for line in lines if line.filename[0] != "<"), "")
    return f"{method} raised {type(failure).__name__}{place}"


def _transaction(table: TableId, message: Message) -> Transaction:
    assert message.value is not None  # no tombstone
    source = message.value["source"]
    number = source["transaction_id"] if message.op != READ else 0
    return Transaction(table.tenant, table.source, number, source["ts_us"])


def _image(place: str, table: TableId, message: Message, transaction: Transaction) -> tuple[Values, Change]:
    """Before or after."""
    assert message.value is not None  # no tombstone
    values, source = message.value[place] or {}, message.value["source"]
    unknown = json.loads(source["unavailable"]).get(place, ()) if source["unavailable"] else ()
    if source["unrepresentable"]:
        values = values | json.loads(source["unrepresentable"]).get(place, {})
    return values, Change(table, transaction, message.gsn, source["position"], message.key, frozenset(unknown))
