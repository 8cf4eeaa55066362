"""What is said where the desired state is gone: the cut log has a table that the database never heard of.

Pure. The database was lost, or is an older copy, and was brought up to date from the cut log, which holds positions and
counts but not which tables shall be synced. Such a table stands where the lake has it until somebody says what is
wanted of it.
"""

from typing import Any

from menura.naming import command_table

from gateway.registry import Problem

CODE = "DESIRED_STATE_LOST"
#: in the table's continuity ledger
HISTORY_LOST = (
    "The control plane's database was lost or is an older copy, and was brought up to date from the cut log, which does"
    " not have commands: who ordered what before is not known"
)


def table_problem(source: str, database: str, table: str, at_us: int) -> Problem:
    named = f"{source} {command_table(database, table)}"
    words = (
        f"Following the cut log (source {source}, table {database}.{table}): the control plane's database, which was"
        " lost or is an older copy, does not say whether the table shall be synced. The lake keeps it as it is; its"
        f" changes are not read. Start it, and it goes on where it stopped: menura sync start {named}; or leave it"
        f" stopped: menura sync stop {named}"
    )
    return Problem(CODE, words, terminal=True, at_us=at_us)


def is_lost(problem: dict[str, Any] | None) -> bool:
    return problem is not None and problem["code"] == CODE


def source_problem(source: str, tables: int, at_us: int) -> Problem:
    """Of a source with so many such tables."""
    words = (
        f"Following the cut log (source {source}): the control plane's database was lost or is an older copy, and does"
        f" not say which of {tables} tables shall be synced. The lake keeps them as they are; their changes are not"
        f" read. Start all of them, and they go on where they stopped: menura sync start {source} --lost; or see how to"
        f" start or leave each alone: menura tables {source}"
    )
    return Problem(CODE, words, terminal=True, at_us=at_us)
