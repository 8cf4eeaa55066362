"""Standing rules, by which tables that come later are started; and operations, which say how far tables are."""

from fastapi import APIRouter
from sqlalchemy import Connection

from controlplane_api import rules
from controlplane_api.api import operation_queries, queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, OperationName, RuleName, SourceName, TenantName
from controlplane_api.api.requests import RuleCommand
from controlplane_api.api.views import OperationDetail, Operations, Rules, RuleView
from controlplane_api.api.writing import GUARDED, WriteIf
from controlplane_api.errors import OperationUnknown, RuleUnknown, SourceUnknown
from controlplane_api.models import AnyRow

router = APIRouter(
    prefix="/api/v1/tenants/{tenant}/sources/{source}", tags=["tables"], responses=refusals(SourceUnknown)
)


@router.get("/rules")
def get_rules(tenant: TenantName, source: SourceName, database: ControlDatabase) -> Rules:
    """The oldest first, which decides where several have a table; a source has a hundred at most."""
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        return Rules(rules=[_view(row) for row in rules.listed(connection, source_id)])


@router.post(
    "/rules/{rule}/remove",
    responses=refusals(SourceUnknown, RuleUnknown) | refusals(*GUARDED),
)
def remove_rule(tenant: TenantName, source: SourceName, rule: RuleName, _request: RuleCommand, write: WriteIf) -> Rules:
    """Tables that it has started go on. The answer has the rules that are left."""

    def act(connection: Connection) -> Rules:
        source_id = queries.source_row(connection, tenant, source).id
        rules.remove(connection, source_id, rule)
        return Rules(rules=[_view(row) for row in rules.listed(connection, source_id)])

    return write.run(Rules, act, versions.of_source(tenant, source))


@router.get("/operations")
def get_operations(
    tenant: TenantName, source: SourceName, database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100
) -> Operations:
    """Commands about several tables, the newest first; the oldest ones are forgotten."""
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        return operation_queries.operations(connection, source_id, cursor=cursor, limit=limit)


@router.get("/operations/{operation}", responses=refusals(SourceUnknown, OperationUnknown))
def get_operation(
    tenant: TenantName,
    source: SourceName,
    operation: OperationName,
    database: ControlDatabase,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> OperationDetail:
    """How far each table is, page by page."""
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        return operation_queries.operation(connection, source_id, operation, cursor=cursor, limit=limit)


def _view(row: AnyRow) -> RuleView:
    return RuleView(
        rule=row.uuid, database=row.database, table=row.name, start=row.start, created_at_us=row.created_at_us
    )
