"""When tables are verified by themselves, and what verifications have found of each table."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0033"
down_revision = "0032"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAMES = ("tenant", "source", "database", "name")
WORST_FIRST = ("differs", "never", "unknown", "equal")


def upgrade() -> None:
    op.create_table(
        "verification_schedule",
        sa.Column("source_id", ID, autoincrement=False, nullable=False),
        sa.Column("every_seconds", sa.BigInteger(), nullable=False),
        *[sa.Column(name, sa.Text(), nullable=False) for name in ("database", "name", "window")],
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in ("rows_per_second", "changed_at_us")],
        sa.Column("next_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("source_id", name=op.f("pk_verification_schedule")),
        sa.ForeignKeyConstraint(["source_id"], ["source.id"], name=op.f("fk_verification_schedule_source_id")),
    )
    proofs = op.create_table(
        "table_proof",
        *[sa.Column(name, sa.Text(), nullable=False) for name in (*NAMES, "state")],
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in ("known_at_us", "proven_at_us", "newest_id")],
        sa.Column("proof_id", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint(*NAMES, name=op.f("pk_table_proof")),
    )
    op.add_column("sync", sa.Column("verification_ordered_at_us", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index(op.f("ix_sync_source_id_verification"), "sync", ["source_id", "verification_ordered_at_us"])
    if not context.is_offline_mode():
        _judge(proofs)


def _judge(proofs: sa.Table) -> None:
    """From the verdicts that are there, as `verdicts.judged` does."""
    verdict = sa.table("verdict", *map(sa.column, (*NAMES, "lake_id", "id", "verdict", "proven_at_us")))
    names = [verdict.c[name] for name in NAMES]
    ordered = sa.select(verdict).order_by(*names, verdict.c.lake_id, verdict.c.id.desc())
    rows = op.get_bind().execute(ordered, execution_options={"yield_per": 10_000})
    found = []
    for name, of_table in groupby(rows, key=lambda row: tuple(row[:4])):
        lakes = [_of_lake(list(of_lake)) for _, of_lake in groupby(of_table, key=lambda row: row.lake_id)]
        worst = min(lakes, key=lambda lake: (WORST_FIRST.index(lake["state"]), lake["proven_at_us"]))
        known_at_us = min(lake["known_at_us"] for lake in lakes)
        found.append({**dict(zip(NAMES, name, strict=True)), **worst, "known_at_us": known_at_us})
    if found:
        op.bulk_insert(proofs, found)


def _of_lake(newest_first: Sequence[Any]) -> dict[str, Any]:
    known = next((row for row in newest_first if row.verdict in ("equal", "differs")), None)
    proof = next((row for row in newest_first if row.verdict == "equal"), None)
    is_equal = newest_first[0].verdict == "equal"
    return {
        "state": "differs" if known and known.verdict == "differs" else "equal" if is_equal else "unknown",
        "known_at_us": known.proven_at_us if known else 0,
        "proven_at_us": proof.proven_at_us if proof else 0,
        "newest_id": newest_first[0].id,
        "proof_id": proof.id if proof else None,
    }


def downgrade() -> None:
    op.drop_index(op.f("ix_sync_source_id_verification"), "sync")
    op.drop_column("sync", "verification_ordered_at_us")
    op.drop_table("table_proof")
    op.drop_table("verification_schedule")
