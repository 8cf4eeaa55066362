"""Tables of online schema changes: gh-ost and pt-online-schema-change change a copy and put it in the table's place.

Pure: names in, verdicts out. Both tools keep the copy (the ghost table) equal to the table while they work, so its
traffic is not data, and the swap is one change of the table's definition. They are known by the names that they give:

::

    gh-ost    _T_gho  copy    _T_del, _T_YYYYMMDDhhmmss_del  the table, put aside;  with --revert the copy is _T_del
    pt-osc    _T_new  copy    _T_old  the table, put aside; more underscores where a name is taken, then A1B2C3_
"""

import re
from collections.abc import Iterator

MOST_NAME_CHARACTERS = 64
#: pt-online-schema-change tries so many underscores before it makes other names
_MOST_UNDERSCORES = 10

_TIMESTAMP = r"(?:[0-9]{14}_)?"
_SHAPES = tuple(
    re.compile(shape, re.DOTALL)
    for shape in (
        r"_(?P<base>.+)_gho",
        rf"_(?P<base>.+?)_{_TIMESTAMP}(?:rev_)?del",
        r"(?:[A-Z0-9]{6}_)*_(?P<base>.+)_(?:new|old)",
    )
)


def bases(name: str) -> Iterator[str]:
    """Tables that `name` may be a helper of, by its shape; `is_ghost` decides.

    >>> list(bases("_orders_gho")), list(bases("__a_new"))
    (['orders'], ['_a', 'a'])
    """
    for shape in _SHAPES:
        found = shape.fullmatch(name)
        if found is None:
            continue
        base = found["base"]
        yield base
        while base.startswith("_") and len(base) > 1:
            base = base[1:]
            yield base


def is_ghost(table: str, name: str) -> bool:
    """Whether `name` is that of a copy that will take the place of `table`.

    >>> is_ghost("orders", "_orders_gho"), is_ghost("orders", "orders_new")
    (True, False)
    """
    return name == _gh_ost(table, "gho") or _is_deleted(table, name, "") or _is_percona(table, name, "new")


def is_swap(table: str, put_aside: str, ghost: str) -> bool:
    """Whether renaming `table` to `put_aside` and `ghost` to `table` ends an online schema change.

    >>> is_swap("orders", "_orders_del", "_orders_gho"), is_swap("orders", "orders_old", "orders_new")
    (True, False)
    """
    if ghost == _gh_ost(table, "gho"):
        return _is_deleted(table, put_aside, "")
    if _is_deleted(table, ghost, ""):  # gh-ost takes it back
        return _is_deleted(table, put_aside, "rev_") or put_aside == _gh_ost(table, "gho")
    return _is_percona(table, ghost, "new") and _is_percona(table, put_aside, "old")


def is_put_aside(table: str, name: str) -> bool:
    """Whether gh-ost gives this name to a table that its copy will replace in a statement of its own."""
    return _is_deleted(table, name, "")


def _gh_ost(table: str, suffix: str) -> str:
    """The table's name is cut where the whole is too long."""
    return f"_{table[: MOST_NAME_CHARACTERS - len(suffix) - 2]}_{suffix}"


def _is_deleted(table: str, name: str, revert: str) -> bool:
    if name == _gh_ost(table, f"{revert}del"):
        return True
    found = re.search(rf"_([0-9]{{14}}_{revert}del)$", name)
    return found is not None and name == _gh_ost(table, found[1])


def _is_percona(table: str, name: str, suffix: str) -> bool:
    """The whole is cut where it is too long."""
    bare = re.sub(r"^(?:[A-Z0-9]{6}_)+(?=_)", "", name)
    prefix = name[: len(name) - len(bare)]
    return any(
        name == f"{prefix}{'_' * count}{table}_{suffix}"[:MOST_NAME_CHARACTERS]
        for count in range(1, _MOST_UNDERSCORES + 1)
    )
