"""What makes the agent's packages."""

import os
from pathlib import Path

import pytest

from tests.servers import ROOT


@pytest.fixture(scope="package")
def nfpm() -> Path:
    found = ROOT / ".servers/nfpm/nfpm"
    if not found.exists():
        assert "CI" not in os.environ, ".ci/setup nfpm builds it, with a Go of 1.23 or later"
        pytest.skip("needs nfpm: .ci/setup nfpm builds it, with a Go of 1.23 or later")
    return found
