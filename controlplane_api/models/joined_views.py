"""Joined views, as they are desired, and what sinks report of each."""

from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class JoinedView(Base):
    """A view that lakes shall have; see `joined_views`."""

    __tablename__ = "joined_view"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    #: grows with each change of its text
    version: Mapped[int]
    sql: Mapped[str]
    #: of the text, by `menura.views.definition.ViewDefinition`
    digest: Mapped[str]
    #: that it reads, as its plan found them: [source, database, table]
    tables: Mapped[list[Any]]
    #: names of views that it reads
    views: Mapped[list[Any]]
    created_at_us: Mapped[int]
    changed_at_us: Mapped[int]


class LakeJoinedView(Base):
    """How a view is in a lake; see `menura.views.definition.ViewState`. It names its view, known here or not."""

    __tablename__ = "lake_joined_view"

    lake_id: Mapped[int] = mapped_column(Id, ForeignKey("lake.id"), primary_key=True, autoincrement=False)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    #: of the text that the sink has
    digest: Mapped[str]
    state: Mapped[str]
    code: Mapped[str]
    message: Mapped[str]
    #: of `menura.views.definition.ViewCut`
    cuts: Mapped[list[Any]]
    #: how many times it was changed
    lake_version: Mapped[int]
    #: -1: not known
    rows: Mapped[int]
    #: of the last version
    changes: Mapped[int]
    applied_at_us: Mapped[int]
