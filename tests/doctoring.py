"""Checks of `menura doctor` against tables of facts: each once as it should be, and once with what mends it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from menura.doctor import Checks, Finding, Result

F = TypeVar("F")
#: by check: what is other than in facts where all is well, and what stands in its fix
Broken = Mapping[str, tuple[dict[str, Any], str]]


def findings(checks: Checks[F], facts: F) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.of("part", facts)}


def assert_well(checks: Checks[F], facts: F, broken: Broken) -> None:
    """And that each check has a case where it finds something."""
    found = findings(checks, facts)
    assert [each for each in found.values() if each.result is not Result.OK] == []
    assert all(each.why.endswith(".") and not each.fix for each in found.values())
    assert broken.keys() == found.keys()


def assert_mended_by(checks: Checks[F], facts: F, check: str, broken: Broken) -> None:
    changes, fix = broken[check]
    found = findings(checks, replace(facts, **changes))[check]  # type: ignore[type-var]
    assert found.result in (Result.WARNING, Result.FAILED), found
    assert fix and fix in found.fix, found
    assert found.found != findings(checks, facts)[check].found
