"""Upgrades of the agent on a host that runs systemd, by packages that were really built, at a real gateway."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.install.conftest import Releases
from tests.install.upgrading import RESULT, Upgrading, allow, upgrading
from tests.install.versions import DIALS_NOBODY, DOES_NOT_START

pytestmark = pytest.mark.long


@pytest.mark.parametrize("extension", ["deb", "rpm", "tar.gz"])
def test_upgrade_when_it_is_ordered_then_only_with_a_key_and_what_is_not_well_is_rolled_back(
    extension: str, releases: Releases, nfpm: Path, key: Path, tmp_path: Path
) -> None:
    first, second = releases("0.1.0"), releases("0.2.0")
    with upgrading(tmp_path, first, key, nfpm, extension) as up:
        up.order(second, first)
        assert "this host allows no upgrades" in str(up.answer()["found"])
        allow(up.host)
        kept = _kept(up)
        up.order(second, first)
        assert up.answer()["state"] == "DONE"
        up.connected("0.2.0")
        up.row_lands()
        up.waits(40)
        up.order(releases("0.3.0", DOES_NOT_START), second)
        answer = up.answer()
        assert (answer["state"], answer["version"]) == ("ROLLED_BACK", "0.3.0")
        assert "it did not run within 40 s" in str(answer["found"])
        up.connected("0.2.0")
        up.order(releases("0.4.0", DIALS_NOBODY), second)
        answer = up.answer()
        assert answer["state"] == "ROLLED_BACK"
        assert re.search("no gateway was reached within 40 s, .* version 0.4.0; gateway not", str(answer["found"]))
        up.connected("0.2.0")
        up.row_lands()
        up.waits(180)
        up.order(first, second)
        assert up.answer()["state"] == "DONE", "the way back of the last upgrade"
        up.connected("0.1.0")
        up.row_lands()
        up.order(first, second)
        assert up.answer()["state"] == "REFUSED"
        assert _kept(up) == kept
        assert up.host.run("systemctl --failed --plain --no-legend") == ""
        up.host.run("sha256sum --quiet --check /opt/menura-agent/MANIFEST")


def _kept(up: Upgrading) -> list[str]:
    names = ("etc/menura/agent.yaml", "etc/menura/credentials/shop.password", "var/lib/menura-agent/identity.pem")
    assert (up.host.root / RESULT).exists()
    return [hashlib.sha256((up.host.root / name).read_bytes()).hexdigest() for name in names]
