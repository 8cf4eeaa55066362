"""Sources that are configured here, and what an application of a file changes."""

from typing import Any

from controlplane_api.api.views.base import View
from controlplane_api.api.views.commands import RefusalView
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.states import Action, ConfigurationState


class RefusedTableView(View):
    database: str
    table: str
    problem: ProblemView


class TableFilterView(View):
    """What of a table leaves its host by the configuration of its source; the host's own policy may keep back more."""

    source: str
    database: str
    table: str
    #: false: no row of it
    leaves: bool
    #: as its rule has them
    ignored_columns: list[str]
    #: each that is known, and whether its values leave
    columns: dict[str, bool]


class ConfigurationView(View):
    """How a source shall be configured, and beside it what its agent runs."""

    source: str
    agent: str | None
    #: whether its agent is connected
    connected: bool
    #: as the agent's file would have it; without secrets
    desired: dict[str, Any]
    generation: int
    sha256: str
    changed_at_us: int
    #: of what runs, as the agent said last; 0 and empty: nothing does
    effective_generation: int
    effective_sha256: str
    told_at_us: int | None
    state: ConfigurationState
    #: CONFIGURATION_APPLIED, or the code of why it is not
    reason: str
    #: what there is to know; empty when it is applied
    message: str
    #: tables that wait until the source shows them
    wanted_tables: int
    #: the first of those that it shows, and that can't be synced
    refused_tables: list[RefusedTableView]


class ConfigurationChanged(View):
    source: str
    #: false: it was so before
    changed: bool
    generation: int


class FleetChange(View):
    #: create, change, move, remove, start, resume, stop; keep: the file lacks it, and it stays
    action: Action
    #: of a view, or of an agent, a source or a table: the last that is not empty
    agent: str
    source: str
    database: str
    table: str
    view: str = ""
    #: what it means or costs
    detail: str
    #: of the server's statistics, of a table that is dumped; null: not known, or not dumped
    estimated_rows: int | None
    estimated_bytes: int | None
    refused: "RefusalView | None"


class FleetPlan(View):
    tenant: str
    #: false: a plan alone
    applied: bool
    changes: list[FleetChange]
    #: what the file lacks and stays: --prune would remove or stop it
    kept: list[FleetChange]
