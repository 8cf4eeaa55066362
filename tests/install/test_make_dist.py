"""`make dist` where something is missing that a package should have."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import ROOT

UPLOT = Path("controlplane_api/api/dashboard/uplot.js")


@pytest.mark.parametrize("has_plots", [True, False])
def test_dist_when_the_library_of_plots_is_missing_then_fails_and_builds_nothing(has_plots: bool, tmp_path: Path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".ci", "build", "dist", UPLOT.parent):
        (tmp_path / folder).mkdir(parents=True)
    setup = tmp_path / ".ci/setup"  # it goes on where there is no npm
    setup.write_text("#!/bin/sh\n")
    setup.chmod(0o700)
    if has_plots:
        (tmp_path / UPLOT).write_text("export default uPlot;\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "dist", "PYTHON=echo building:"]
    done = subprocess.run(make, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    log = tmp_path / "build/dist.log"
    assert (done.returncode == 0, log.exists()) == (has_plots, has_plots), done.stderr
    assert has_plots or (f"{UPLOT} is missing" in done.stderr and (tmp_path / "dist").exists())
