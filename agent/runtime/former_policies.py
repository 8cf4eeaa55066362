"""What the host's policy has kept back of a source's columns: who gets one free is told that it is so, by no name.

Comes in: the policy in force when reading the log begins, and each look at the server's tables with all of their
columns. Goes out: of each table an identity of this memory, whether columns of it stay, and how often one that stayed
has been given free; the gateway compares that with what it heard before. No name of a column leaves, and none does
once it is free: rows that lack its values are read again all the same.

Durable is `SOURCE.policies.json` in the state folder, for its owner alone, before a row is read under a policy that it
does not have: the policies under which rows may have left since the last comparison. A look at all tables, once
reading has begun under the policy in force, compares: a column that is there, that one of those kept back and that
leaves now, raises its table's number, and the policy in force is the only one left, in one write. A kill before it has
the next look compare again. A memory that is lost begins with another identity; then nobody knows what was free, and
the gateway has each table read again of which it has heard that columns stay. Who has no policy with columns has no
memory.

::

    {"format": 1, "memory": "5f0c...", "freed": [["shop", "orders", 1]],
     "policies": [{"open": true, "sources": null, "rules": [{"database": "shop", "table": "orders", "leaves": true,
                   "only": null, "ignored_columns": ["pin"], "sources": [], "renamed_from": []}]}]}
"""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from menura.v1.catalog_pb2 import TableCard
from menura.v1.config_pb2 import Withheld

from agent.filter import Filter, Table
from agent.runtime.state_folder import make_state_folder, state_unusable, write_whole
from agent.veto.policy import Pattern, Policy, Rule

log = logging.getLogger("menura.policy")

FORMAT = 1
#: that no look has compared yet, and of tables with a number; beyond them a memory begins anew
MOST_POLICIES, MOST_FREED = 16, 100_000


@dataclass(frozen=True, slots=True)
class _Memory:
    identity: str
    #: the newest last, without their lines
    policies: tuple[Policy, ...]
    freed: Mapping[Table, int] = field(default_factory=dict)


class FormerPolicies:
    """Of one source; from any thread."""

    def __init__(self, filter_: Filter, folder: Path | None = None, source: str = "") -> None:
        """`folder` None: nothing is kept, and nothing is told."""
        self._filter = filter_
        self._source = source
        self._folder = folder
        self._path = None if folder is None else folder / f"{source}.policies.json"
        self._lock = threading.Lock()
        self._memory = None if self._path is None else _read(self._path)
        #: the filter under each policy of the memory, which keep what they were asked for
        self._former = self._filters()
        #: the policy under which the log is read
        self._reads_under: Policy | None = None
        #: called when a look at all tables is needed, from any thread
        self.on_due: Callable[[], None] = lambda: None
        #: of which memory a look has compared all tables, and what it has found
        self._compared: _Memory | None = None
        self._found: set[Table] = set()

    def reads(self) -> bool:
        """The log is read anew: what comes from here on is planned under the policy in force.

        Whether `withheld` may say something else now. Raises `StateFolderUnusable`: then nothing may be read.
        """
        policy = self._filter.veto.policy
        if self._folder is None:
            return False
        with self._lock:
            self._reads_under = policy
            former, said = self._memory, _bare(policy)
            if former is None and not any(rule.only is not None or rule.ignored_columns for rule in said.rules):
                return False
            if former is None or len(former.policies) >= MOST_POLICIES or len(former.freed) > MOST_FREED:
                self._keep(_Memory(uuid.uuid4().hex, (said,)))
            elif former.policies[-1] != said:
                self._keep(replace(former, policies=(*former.policies, said)))
            is_other = self._memory is not former
        if not self.is_settled:
            self.on_due()
        return is_other

    @property
    def is_settled(self) -> bool:
        """Whether no look at the tables is needed."""
        memory = self._memory
        return memory is None or len(memory.policies) == 1

    def withheld(self, table: Table) -> Withheld:
        """What a gateway may hear of that."""
        memory = self._memory
        if memory is None:
            return Withheld()
        stays = any(former.verdict(*table).vetoed for former in self._former)
        return Withheld(memory=memory.identity, columns=stays, freed=memory.freed.get(table, 0))

    def compared(self, cards: Iterable[TableCard]) -> Iterator[TableCard]:
        """The same cards, as the server has them; `settle` takes what was found in them."""
        with self._lock:
            policy, memory, reads_under = self._filter.veto.policy, self._memory, self._reads_under
        self._compared, self._found = None, set()
        if memory is None or len(memory.policies) == 1 or policy is not reads_under:
            yield from cards
            return
        former = self._filters()  # anew: which partitions there are the look has just told
        now = self._under(_bare(policy))
        for card in cards:
            table = (card.table.database, card.table.table)
            columns = [column.name for column in card.columns]
            if any(_has_freed(one, now, table, columns) for one in former):
                self._found.add(table)
            yield card
        self._compared = memory

    def settle(self) -> bool:
        """After a look: whether it has compared all tables. Raises `StateFolderUnusable`.

        One that had begun before the log was read under the policy in force has not.
        """
        with self._lock:
            memory, policy = self._memory, self._filter.veto.policy
            if memory is None or memory is not self._compared or policy is not self._reads_under:
                return False
            freed = {**memory.freed, **{table: memory.freed.get(table, 0) + 1 for table in self._found}}
            self._keep(replace(memory, policies=(_bare(policy),), freed=freed))
        fields = {
            "source": self._source,
            "policies": len(memory.policies),
            "tables_with_columns_free": len(self._found),
        }
        log.info("the policy was compared with former ones", extra={"fields": fields})
        return True

    def _filters(self) -> tuple[Filter, ...]:
        return () if self._memory is None else tuple(map(self._under, self._memory.policies))

    def _under(self, policy: Policy) -> Filter:
        return replace(self._filter, veto=self._filter.veto.under(policy))

    def _keep(self, memory: _Memory) -> None:
        if self._folder is None or self._path is None:
            return
        make_state_folder(self._folder, self._source)
        try:
            write_whole(self._path, json.dumps(_document(memory), ensure_ascii=False).encode())
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
        self._memory = memory
        self._former = self._filters()


def _has_freed(former: Filter, now: Filter, table: Table, columns: Iterable[str]) -> bool:
    """Whether a column stayed that does not now; also where the table itself stays now, and may come back."""
    kept_back = former.column_veto(table)
    if not kept_back:
        return False
    verdict = now.verdict(*table)
    return any(kept_back.ignores(name) and not verdict.ignores(name) for name in columns)


def _bare(policy: Policy) -> Policy:
    """What of it decides over tables, without its places in a file."""
    rules = tuple(replace(rule, line=0) for rule in policy.rules)
    return Policy(is_open=policy.is_open, sources=policy.sources, rules=rules)


def _document(memory: _Memory) -> dict[str, Any]:
    policies = [
        {
            "open": policy.is_open,
            "sources": policy.sources,
            "rules": [
                {
                    "database": rule.database.text, "table": rule.table.text, "leaves": rule.leaves, "only": rule.only,
                    "ignored_columns": rule.ignored_columns, "sources": rule.sources, "renamed_from": rule.renamed_from,
                }
                for rule in policy.rules
            ],
        }
        for policy in memory.policies
    ]  # fmt: skip
    freed = [[*table, times] for table, times in sorted(memory.freed.items())]
    return {"format": FORMAT, "memory": memory.identity, "freed": freed, "policies": policies}


def _read(path: Path) -> _Memory | None:
    """None: there is none, or it is no such file. Then it is lost, which whoever has heard of it notices."""
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT or not found["policies"]:
            return None
        freed = {(str(database), str(table)): int(times) for database, table, times in found["freed"]}
        return _Memory(str(found["memory"]), tuple(map(_policy, found["policies"])), freed)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _policy(found: Mapping[str, Any]) -> Policy:
    rules = tuple(
        Rule(
            0,
            Pattern(str(rule["database"])),
            Pattern(str(rule["table"])),
            bool(rule["leaves"]),
            None if rule["only"] is None else tuple(map(str, rule["only"])),
            *(tuple(map(str, rule[name])) for name in ("ignored_columns", "sources", "renamed_from")),
        )
        for rule in found["rules"]
    )
    sources = None if found["sources"] is None else tuple(map(str, found["sources"]))
    return Policy(is_open=bool(found["open"]), sources=sources, rules=rules)
