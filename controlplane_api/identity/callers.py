"""Who asks the API and what each may do. Pure: the one place that decides.

A caller has grants: a role in one tenant, or in the whole fleet. `api.roles` says what a route needs; `may` compares.
Whoever has no role in a tenant is told what he would be told of one that is not there.
"""

from dataclasses import dataclass
from enum import StrEnum

from menura.naming import is_identity


class Role(StrEnum):
    #: sees a tenant, and of its rows keys alone
    VIEWER = "viewer"
    #: sees a tenant, and finds rows of its tables
    READER = "reader"
    #: starts, stops and dumps too, and sees no more of rows
    OPERATOR = "operator"
    #: enrols and revokes agents, makes tokens too
    ADMIN = "admin"
    #: sees what is of no tenant, and nothing of a tenant: metrics, lakes
    FLEET_VIEWER = "fleet-viewer"
    #: reports how a lake is
    SINK = "sink"


class Need(StrEnum):
    """What a caller must be for a route."""

    NOBODY = "nobody"
    ANYBODY_KNOWN = "anybody known"
    VIEW = "view"
    READ_ROWS = "read rows"
    OPERATE = "operate"
    ADMINISTER = "administer"
    VIEW_FLEET = "view the fleet"
    ADMINISTER_FLEET = "administer the fleet"
    REPORT_LAKE = "report a lake"


_OF_TENANT = frozenset({Need.VIEW, Need.READ_ROWS, Need.OPERATE, Need.ADMINISTER})
_IN_TENANT = {
    Role.VIEWER: frozenset({Need.VIEW}),
    Role.READER: frozenset({Need.VIEW, Need.READ_ROWS}),
    Role.OPERATOR: frozenset({Need.VIEW, Need.OPERATE}),
    Role.ADMIN: _OF_TENANT,
}
_IN_FLEET = {
    Role.VIEWER: _IN_TENANT[Role.VIEWER] | {Need.VIEW_FLEET},
    Role.READER: _IN_TENANT[Role.READER] | {Need.VIEW_FLEET},
    Role.OPERATOR: _IN_TENANT[Role.OPERATOR] | {Need.VIEW_FLEET},
    Role.ADMIN: frozenset(Need),
    Role.FLEET_VIEWER: frozenset({Need.VIEW_FLEET}),
    Role.SINK: frozenset({Need.REPORT_LAKE}),
}
#: these are never a tenant's
FLEET_ROLES = frozenset(_IN_FLEET.keys() - _IN_TENANT.keys())


@dataclass(frozen=True, slots=True)
class Grant:
    role: Role
    #: None: in the whole fleet
    tenant: str | None

    def __post_init__(self) -> None:
        if self.tenant is None:
            return
        if self.role in FLEET_ROLES or not is_identity(self.tenant):
            raise ValueError(f"{self.role} is no role of a tenant {self.tenant!r}")


@dataclass(frozen=True, slots=True)
class Caller:
    #: as the audit log names it
    actor: str
    grants: tuple[Grant, ...]

    def sees(self, tenant: str) -> bool:
        """Whether there is anything of the tenant that the caller may know of.

        >>> Caller("a", (Grant(Role.VIEWER, "acme"),)).sees("globex")
        False
        """
        return self.may(Need.VIEW, tenant)

    def tenants(self) -> frozenset[str] | None:
        """Those that the caller sees; None: all.

        >>> Caller("a", (Grant(Role.VIEWER, "acme"), Grant(Role.SINK, None))).tenants()
        frozenset({'acme'})
        """
        if any(grant.tenant is None and Need.VIEW in _IN_FLEET[grant.role] for grant in self.grants):
            return None
        return frozenset(grant.tenant for grant in self.grants if grant.tenant is not None)

    def may(self, need: Need, tenant: str | None = None) -> bool:
        """`tenant`: whose route it is, if it is one's.

        >>> Caller("a", (Grant(Role.OPERATOR, "acme"),)).may(Need.OPERATE, "acme")
        True
        """
        if need in (Need.NOBODY, Need.ANYBODY_KNOWN):
            return True
        return any(
            need in (_IN_FLEET[grant.role] if grant.tenant is None else _IN_TENANT[grant.role])
            for grant in self.grants
            if grant.tenant is None or (grant.tenant == tenant and need in _OF_TENANT)
        )


#: whoever reaches an API that was told to ask nobody
ANONYMOUS = Caller("anonymous", (Grant(Role.ADMIN, None),))
