"""Applies the joined views of a fleet: those of a file are made or changed, others stay or, to be pruned, are dropped.

Comes in: what a file says, whole, within the caller's transaction. Goes out: rows of `joined_view`, and what changed in
which order. A view that is refused changes nothing, and says why; the others are done.
"""

from collections.abc import Callable, Mapping
from functools import partial

from menura.views.definition import ViewDefinition, ViewRefused
from menura.views.reads import in_order
from sqlalchemy import Connection

from controlplane_api import joined_views
from controlplane_api.errors import RequestError
from controlplane_api.fleets import Change
from controlplane_api.states import Action


def apply(connection: Connection, tenant: str, views: Mapping[str, str], *, prune: bool) -> list[Change]:
    """`views`: by name, their texts."""
    tenant_id = joined_views.locked(connection, tenant)
    there = [row.name for row in joined_views.of_tenant(connection, tenant_id)]
    changes = []
    for name in _order(tenant, views):
        if name in there:
            changes += _changed(connection, tenant, name, views[name])
        else:
            refused = _refusal(connection, partial(joined_views.create, connection, tenant, name, views[name]))
            changes.append(Change(Action.CREATE, "", view=name, detail="lakes build it", refused=refused))
    over = [name for name in there if name not in views]
    if not prune:
        return changes + [
            Change(Action.KEEP, "", view=name, detail="not in the file; --prune drops it") for name in over
        ]
    return changes + _dropped(connection, tenant, over)


def _order(tenant: str, views: Mapping[str, str]) -> list[str]:
    """Each after those that it reads; by name where these can't be told, which their plans say then."""
    names = sorted(views)
    try:
        return [each.name for each in in_order(ViewDefinition(tenant, name, views[name]) for name in names)]
    except ViewRefused:
        return names


def _changed(connection: Connection, tenant: str, name: str, sql: str) -> list[Change]:
    row = joined_views.view_row(connection, tenant, name)
    if row.sql == sql:
        return []
    refused = _refusal(connection, partial(joined_views.change, connection, tenant, name, sql))
    return [Change(Action.CHANGE, "", view=name, detail="lakes build it anew", refused=refused)]


def _dropped(connection: Connection, tenant: str, names: list[str]) -> list[Change]:
    """Those that others read after these."""
    changes: list[Change] = []
    left = names
    while left:
        refused = {name: _refusal(connection, partial(joined_views.drop, connection, tenant, name)) for name in left}
        changes += [
            Change(Action.REMOVE, "", view=name, detail="lakes follow it no more")
            for name in left
            if refused[name] is None
        ]
        waiting = [name for name in left if refused[name] is not None]
        if waiting == left:
            return changes + [Change(Action.REMOVE, "", view=name, refused=refused[name]) for name in left]
        left = waiting
    return changes


def _refusal(connection: Connection, act: Callable[[], object]) -> RequestError | None:
    """Why it was refused; None: it was done."""
    try:
        with connection.begin_nested():
            act()
    except RequestError as refused:
        return refused
    return None
