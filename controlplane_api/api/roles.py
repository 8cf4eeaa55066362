"""What each route needs of its caller. A route that is not here keeps the application from being made."""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane_api.api.routers import (
    api_tokens,
    configurations,
    dumps,
    events,
    fleet,
    identities,
    lakes,
    login,
    rules,
    service,
    tables,
)
from controlplane_api.identity.callers import Need

NEEDS: Mapping[Callable[..., Any], Need] = {
    service.get_health: Need.NOBODY,
    # pages that an error's `type` names
    service.get_problem_types: Need.NOBODY,
    service.get_problem_type: Need.NOBODY,
    service.get_metrics: Need.VIEW_FLEET,
    login.get_login: Need.NOBODY,
    login.begin_login: Need.NOBODY,
    login.finish_login: Need.NOBODY,
    login.open_session: Need.NOBODY,
    login.end_session: Need.NOBODY,
    login.get_session: Need.ANYBODY_KNOWN,
    login.create_login_link: Need.ANYBODY_KNOWN,
    # shows the tenants that its caller sees
    fleet.get_tenants: Need.ANYBODY_KNOWN,
    fleet.get_fleet: Need.VIEW,
    fleet.get_agents: Need.VIEW,
    fleet.get_sources: Need.VIEW,
    fleet.get_source: Need.VIEW,
    fleet.get_other_server: Need.VIEW,
    fleet.accept_other_server: Need.OPERATE,
    fleet.get_quarantine: Need.VIEW,
    fleet.retry_quarantine: Need.OPERATE,
    fleet.skip_quarantine: Need.OPERATE,
    configurations.get_configuration: Need.VIEW,
    configurations.configure_source: Need.ADMINISTER,
    configurations.remove_configuration: Need.ADMINISTER,
    # takes the locks of an application
    configurations.plan_fleet: Need.OPERATE,
    configurations.apply_fleet: Need.ADMINISTER,
    events.follow_events: Need.VIEW,
    rules.get_rules: Need.VIEW,
    rules.remove_rule: Need.OPERATE,
    rules.get_operations: Need.VIEW,
    rules.get_operation: Need.VIEW,
    tables.get_tables: Need.VIEW,
    tables.get_table: Need.VIEW,
    tables.get_table_events: Need.VIEW,
    tables.start_table: Need.OPERATE,
    tables.stop_table: Need.OPERATE,
    tables.start_tables: Need.OPERATE,
    tables.stop_tables: Need.OPERATE,
    tables.retry_table: Need.OPERATE,
    tables.resync_table: Need.OPERATE,
    tables.retry_tables: Need.OPERATE,
    tables.resync_tables: Need.OPERATE,
    dumps.get_dumps: Need.VIEW,
    dumps.get_source_dumps: Need.VIEW,
    dumps.get_dump: Need.VIEW,
    dumps.start_dumps: Need.OPERATE,
    dumps.start_dump: Need.OPERATE,
    dumps.pause_dump: Need.OPERATE,
    dumps.resume_dump: Need.OPERATE,
    dumps.cancel_dump: Need.OPERATE,
    dumps.set_dump_priority: Need.OPERATE,
    dumps.set_dump_limits: Need.OPERATE,
    identities.create_token: Need.ADMINISTER,
    identities.get_tokens: Need.ADMINISTER,
    identities.revoke_token: Need.ADMINISTER,
    identities.add_agent: Need.ADMINISTER,
    identities.revoke_agent: Need.ADMINISTER,
    identities.assign_source: Need.ADMINISTER,
    identities.get_audit: Need.ADMINISTER,
    api_tokens.create_api_token: Need.ADMINISTER,
    api_tokens.get_api_tokens: Need.ADMINISTER,
    api_tokens.revoke_api_token: Need.ADMINISTER,
    api_tokens.create_fleet_api_token: Need.ADMINISTER_FLEET,
    api_tokens.get_fleet_api_tokens: Need.ADMINISTER_FLEET,
    api_tokens.revoke_fleet_api_token: Need.ADMINISTER_FLEET,
    api_tokens.get_fleet_audit: Need.ADMINISTER_FLEET,
    lakes.get_lakes: Need.VIEW_FLEET,
    lakes.put_report: Need.REPORT_LAKE,
    lakes.forget_lake: Need.ADMINISTER_FLEET,
}

#: commands that `writing` puts into the audit log; those about identities and configurations say more by themselves
AUDITED = frozenset({lakes.forget_lake, *(route for route, need in NEEDS.items() if need is Need.OPERATE)}) - {
    configurations.plan_fleet  # changes nothing
}
