"""Joined views as they are desired: made, changed and dropped by commands, told to sinks whole.

Comes in: names and texts, within the caller's transaction, which holds the tenant's row. Goes out: rows of
`joined_view`, and `menura.views.definition.ViewDefinition`s of all tenants with a digest of all.
A view is planned over what this database knows of its tenant's tables (`view_plans`) before it is stored, so one that
names another tenant's table is refused as one that names none. A kill leaves a command done or not.

A tenant has at most `MAX_OF_TENANT` views with `MAX_SQL_CHARS_OF_TENANT` characters, and all tenants `MOST_VIEWS` with
`MAX_SQL_CHARS_OF_ALL`: each sink gets all of them as one document.
"""

from menura.instants import now_us
from menura.lake_report import views_digest
from menura.views.definition import MOST_VIEWS, ViewDefinition
from sqlalchemy import Connection, delete, func, insert, select, update

from controlplane_api.errors import ViewExists, ViewInUse, ViewRefused, ViewsTooMany, ViewUnknown
from controlplane_api.models import AnyRow, JoinedView, Tenant
from controlplane_api.tenants import ensure_tenants, lock_tenant
from controlplane_api.view_plans import Planned, planned

MAX_OF_TENANT = 64
#: of which each may take four bytes of the document
MAX_SQL_CHARS_OF_TENANT, MAX_SQL_CHARS_OF_ALL = 60 << 10, 240 << 10

_NOTHING_CHANGED = "Nothing was changed."


def create(connection: Connection, tenant: str, name: str, sql: str) -> None:
    """Raises `ViewExists`, `ViewsTooMany`, and what refuses its plan."""
    doing = f"creating view {name}"
    tenant_id = locked(connection, tenant)
    if _row(connection, tenant_id, name) is not None:
        remedy = f"Change it: menura view create {name} --replace; or take another name."
        raise ViewExists(doing, "the tenant has a view of this name", data=_NOTHING_CHANGED, remedy=remedy)
    plan = planned(connection, tenant, name, sql)
    now = now_us()
    values = {"tenant_id": tenant_id, "name": name, "version": 1, "created_at_us": now, "changed_at_us": now}
    connection.execute(insert(JoinedView).values(values | _values(tenant, name, sql, plan)))
    _check_limits(connection, tenant_id, doing)


def change(connection: Connection, tenant: str, name: str, sql: str) -> bool:
    """Whether something changed: then it is the view's next version, which lakes build anew.

    Raises `ViewUnknown`, `ViewsTooMany`, `ViewInUse`, and what refuses its plan.
    """
    tenant_id = locked(connection, tenant)
    row = view_row(connection, tenant, name)
    if row.digest == ViewDefinition(tenant, name, sql).digest:
        return False
    plan = planned(connection, tenant, name, sql)
    values = {"version": row.version + 1, "changed_at_us": now_us(), **_values(tenant, name, sql, plan)}
    connection.execute(update(JoinedView).where(JoinedView.id == row.id).values(values))
    _check_limits(connection, tenant_id, f"changing view {name}")
    _check_readers(connection, tenant, tenant_id, name)
    return True


def drop(connection: Connection, tenant: str, name: str) -> None:
    """Raises `ViewUnknown`, and `ViewInUse` while another view reads it."""
    tenant_id = locked(connection, tenant)
    row = view_row(connection, tenant, name)
    readers = [each.name for each in of_tenant(connection, tenant_id) if name in each.views]
    if readers:
        raise ViewInUse(
            f"dropping view {name}",
            f"{len(readers)} other views read it, the first is {readers[0]}",
            data=_NOTHING_CHANGED,
            remedy="Drop those first.",
        )
    connection.execute(delete(JoinedView).where(JoinedView.id == row.id))


def locked(connection: Connection, tenant: str) -> int:
    """The tenant's id; its views change by this transaction alone until that ends."""
    tenant_id = ensure_tenants(connection, {tenant}, now_us())[tenant]
    lock_tenant(connection, tenant_id)
    return tenant_id


def view_row(connection: Connection, tenant: str, name: str) -> AnyRow:
    """Raises `ViewUnknown`, also for another tenant's."""
    found = select(JoinedView).join(Tenant).where(Tenant.name == tenant, JoinedView.name == name)
    row = connection.execute(found).first()
    if row is None:
        raise ViewUnknown(
            "looking for a view",
            "the tenant has none of this name",
            data=_NOTHING_CHANGED,
            remedy="See those that there are: menura view list.",
        )
    return row


def of_tenant(connection: Connection, tenant_id: int) -> list[AnyRow]:
    """All of a tenant, in order of name."""
    statement = select(JoinedView).where(JoinedView.tenant_id == tenant_id).order_by(JoinedView.name)
    return list(connection.execute(statement).all())


def digest_of_desired(connection: Connection) -> str:
    """Of all views of all tenants: a sink that has others asks for them."""
    rows = connection.execute(select(Tenant.name, JoinedView.name, JoinedView.digest).join_from(JoinedView, Tenant))
    return views_digest((row[0], row[1], row[2]) for row in rows)


def desired(connection: Connection) -> list[ViewDefinition]:
    """Of all tenants, in order of tenant and name."""
    statement = select(Tenant.name, JoinedView.name, JoinedView.sql).join_from(JoinedView, Tenant)
    rows = connection.execute(statement.order_by(Tenant.name, JoinedView.name))
    return [ViewDefinition(*row) for row in rows]


def _row(connection: Connection, tenant_id: int, name: str) -> AnyRow | None:
    found = select(JoinedView).where(JoinedView.tenant_id == tenant_id, JoinedView.name == name)
    return connection.execute(found).first()


def _values(tenant: str, name: str, sql: str, plan: Planned) -> dict[str, object]:
    return {
        "sql": sql,
        "digest": ViewDefinition(tenant, name, sql).digest,
        "tables": [[each.source, each.database, each.table] for each in plan.tables],
        "views": plan.views,
    }


def _check_readers(connection: Connection, tenant: str, tenant_id: int, name: str) -> None:
    """Raises `ViewInUse` where a view that reads this one, as it is now, can't be planned any more."""
    for reader in of_tenant(connection, tenant_id):
        if name in reader.views:
            try:
                planned(connection, tenant, reader.name, reader.sql)
            except ViewRefused as refused:
                raise ViewInUse(
                    f"changing view {name}",
                    f"view {reader.name} reads it, and could not any more: {refused.found}",
                    data=_NOTHING_CHANGED,
                    remedy="Change or drop that one first.",
                ) from refused


def _check_limits(connection: Connection, tenant_id: int, doing: str) -> None:
    counted = select(func.count(), func.coalesce(func.sum(func.length(JoinedView.sql)), 0))
    of_all, chars_of_all = connection.execute(counted.select_from(JoinedView)).one()
    views, chars = connection.execute(counted.where(JoinedView.tenant_id == tenant_id)).one()
    if (
        views > MAX_OF_TENANT or chars > MAX_SQL_CHARS_OF_TENANT or of_all > MOST_VIEWS
        or chars_of_all > MAX_SQL_CHARS_OF_ALL
    ):  # fmt: skip
        raise ViewsTooMany(
            doing,
            f"a tenant has at most {MAX_OF_TENANT} views with {MAX_SQL_CHARS_OF_TENANT} characters, all tenants"
            f" {MOST_VIEWS} with {MAX_SQL_CHARS_OF_ALL}",
            data=_NOTHING_CHANGED,
            remedy="Drop a view that nobody reads: menura view drop NAME.",
        )
