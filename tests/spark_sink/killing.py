"""A process that ends between two steps: a function that raises what nothing catches, instead of its nth call."""

import itertools
from types import ModuleType

import pytest


class Killed(BaseException):
    """No `except Exception` holds it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, module: ModuleType | type, name: str, call: int) -> None:
    """From its call number `call` (from 1) on, `module.name` kills."""
    real, calls = getattr(module, name), itertools.count(1)

    def called(*arguments: object, **named: object) -> object:
        if next(calls) >= call:
            raise Killed
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, called)
