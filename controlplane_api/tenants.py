"""Tenants by name."""

from sqlalchemy import Connection, select

from controlplane_api.documents import insert_into
from controlplane_api.models import Tenant


def lock_tenant(connection: Connection, tenant_id: int) -> None:
    """Others who make its agents or sources wait until this transaction ends; rows that refer to it do not."""
    connection.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(key_share=True))


def ensure_tenants(connection: Connection, names: set[str], at_us: int) -> dict[str, int]:
    """Ids of tenants by name, created where new."""
    connection.execute(
        insert_into(connection, Tenant).on_conflict_do_nothing(),
        [{"name": name, "created_at_us": at_us} for name in sorted(names)],
    )
    return {
        row.name: row.id for row in connection.execute(select(Tenant.name, Tenant.id).where(Tenant.name.in_(names)))
    }
