"""What of a table a source's configuration lets leave its host, and that configuration with another rule for the table.

Comes in: a configuration as an agent's file has it, of which `filter_policy` and `filter` are read. Goes out: what an
agent judges by them (docs/agent.md), but for a table that was renamed; and a configuration that differs in this table's
own rule alone. What the policy of the host keeps back beside is not known here: it may be more, and never less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from menura.naming import TableName

from controlplane_api.errors import RequestInvalid

Configuration = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Leaving:
    #: False: no row of the table leaves
    leaves: bool
    #: columns that stay, as the rule has them
    ignored: tuple[str, ...] = ()


def judged(configuration: Configuration, table: TableName) -> Leaving:
    """
    >>> judged({"filter": {"orders": {"ignored_columns": ["note"]}}}, ("shop", "orders"))
    Leaving(leaves=True, ignored=('note',))
    >>> [judged({"filter_policy": policy, "filter": {"shop.orders": None}}, ("shop", "orders")).leaves
    ...  for policy in ("accept", "drop")]
    [False, True]
    """
    rules = _rules(configuration)
    key = next((key for key in (_key(table), table[1]) if key in rules), None)
    if key is None:
        return Leaving(_lets_all(configuration))
    rule = rules[key] or {}
    return Leaving(True, tuple(rule.get("ignored_columns") or ())) if rule else Leaving(not _lets_all(configuration))


def changed(configuration: Configuration, table: TableName, wanted: Leaving) -> dict[str, Any]:
    """Raises `RequestInvalid` where a rule for tables of this name in any database would have to change.

    >>> changed({"filter": {"shop.orders": {"renamed_from": ["o"]}}}, ("shop", "orders"), Leaving(True, ("note",)))
    {'filter': {'shop.orders': {'renamed_from': ['o'], 'ignored_columns': ['note']}}}
    >>> changed({"filter_policy": "drop", "filter": {"shop.orders": None}}, ("shop", "orders"), Leaving(False))
    {'filter_policy': 'drop', 'filter': {}}
    """
    rules = _rules(configuration)
    own = rules.pop(_key(table), None) or {}
    rest = {name: value for name, value in own.items() if name != "ignored_columns"}
    is_named, lets_all = table[1] in rules, _lets_all(configuration)
    if not wanted.leaves and not lets_all and is_named:
        raise RequestInvalid(
            "changing a filter",
            f"its rule {table[1]} is of the tables of that name in any database, and lets them leave",
            data="Nothing was changed.",
            remedy="Change that rule: menura sources show and menura sources change.",
        )
    if wanted.leaves and (wanted.ignored or is_named or rest):
        rules[_key(table)] = {**rest, "ignored_columns": list(wanted.ignored)}
    elif wanted.leaves != lets_all:
        rules[_key(table)] = None
    return {**configuration, "filter": rules}


def with_columns(
    before: Leaving, ignore: Sequence[str], release: Sequence[str], columns: Sequence[str], key: Sequence[str]
) -> Leaving:
    """`ignore` stay from now on, `release` leave again; `columns` are the table's, `key` those that name its rows.

    Raises `RequestInvalid` for a column that the table does not have, or that its changes can't do without.

    >>> with_columns(Leaving(True, ("Note",)), ["city"], ["note"], ["id", "note", "city"], ["id"])
    Leaving(leaves=True, ignored=('city',))
    """
    folded = {name.lower(): name for name in columns}
    stay = {name.lower(): name for name in before.ignored}
    unknown = [name for name in (*ignore, *release) if name.lower() not in (folded | stay)]
    if unknown:
        found = f"the table has no column {', '.join(unknown)}; it has {', '.join(columns)}"
        raise RequestInvalid("changing a filter", found, data="Nothing was changed.")
    in_key = [name for name in ignore if name.lower() in {each.lower() for each in key}]
    if in_key:
        found = f"{', '.join(in_key)} is in the key, without which no change finds its row"
        raise RequestInvalid("changing a filter", found, data="Nothing was changed.")
    stay |= {name.lower(): folded[name.lower()] for name in ignore if name.lower() in folded}
    return Leaving(True, tuple(stay[name] for name in stay if name not in {each.lower() for each in release}))


def _lets_all(configuration: Configuration) -> bool:
    return configuration.get("filter_policy") != "drop"


def _rules(configuration: Configuration) -> dict[str, Any]:
    return dict(configuration.get("filter") or {})


def _key(table: TableName) -> str:
    return ".".join(table)
