"""Who may read the figures of gateway, sink and search: on loopback anybody, from elsewhere who has the token."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.health import Health
from menura.metrics_port import serving
from menura.token_file import KeptToken, TokenExposed

from gateway.errors import ListenRefused
from gateway.metrics import GatewayMetrics, serving_metrics
from spark_sink.errors import SinkSettingInvalid
from tests.controlplane_api.commands import menura
from tests.metrics_token import TOKEN, asked, token_file
from tests.servers import ROOT

EVERYWHERE = "0.0.0.0:0"


@contextmanager
def reached(file: Path | None, listen: str = EVERYWHERE) -> Iterator[str]:
    with serving_metrics(listen, GatewayMetrics(), Health(), token_file=file) as address:
        yield address.replace("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize("listen", [EVERYWHERE, ":0", "[::]:0", "192.0.2.1:9464", "gw.example:9464"])
@pytest.mark.parametrize("refused", [ListenRefused, SinkSettingInvalid])
def test_port_when_others_reach_it_and_there_is_no_token_then_nothing_listens_and_the_error_says_what_to_do(
    listen: str, refused: type[ListenRefused]
) -> None:
    with pytest.raises(refused) as error, serving([], listen, refused):
        raise AssertionError("unreachable")
    assert "can be reached from other machines, which need a token for /metrics" in str(error.value)
    assert "Give --metrics-token-file FILE" in str(error.value) and "listen on 127.0.0.1" in str(error.value)


@pytest.mark.parametrize(
    "port", ["0 ", " 0", "0\n", "+0", "-0", "1_9", "\u0660", "\u00b2", "", "http", "000000", "65536"]
)
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", ""])
def test_port_when_it_is_not_written_in_digits_then_nothing_listens(host: str, port: str) -> None:
    with pytest.raises(ListenRefused) as error, serving([], f"{host}:{port}", ListenRefused):
        raise AssertionError("unreachable")
    is_open = port == "65536" and host != "127.0.0.1"
    assert ("can be reached from other machines" if is_open else "can't be listened on") in str(error.value)


def test_port_when_a_host_that_seems_loopback_is_bound_to_all_addresses_then_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("menura.metrics_port.is_loopback", lambda host: host != "0.0.0.0")
    with pytest.raises(ListenRefused, match="can be reached"), serving([], ":0", ListenRefused):
        raise AssertionError("unreachable")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0"])
def test_port_when_it_is_loopback_then_a_token_is_needed_only_where_one_is_given(listen: str, tmp_path: Path) -> None:
    with reached(None, listen) as address:
        assert asked(address)[0] == 200
    with reached(token_file(tmp_path), listen) as address:
        assert [asked(address, token)[0] for token in (None, TOKEN)] == [401, 200]


def test_metrics_when_asked_without_the_token_then_refused_and_probes_are_answered(tmp_path: Path) -> None:
    with reached(token_file(tmp_path)) as address:
        for wrong in (None, "", "4f2a9", "4f2a9cc", "4F2A9C", "Bearer 4f2a9c", "é"):
            status, text = asked(address, wrong)
            assert (status, text) == (401, "/metrics needs the token of --metrics-token-file\n"), wrong
        assert asked(address, None, "/metrics?a=b")[0] == 401
        assert [asked(address, None, path)[0] for path in ("/livez", "/readyz", "/", "/metrics/")] == [
            200,
            200,
            404,
            404,
        ]
        status, text = asked(address, TOKEN)
        assert status == 200 and "menura_landing_cuts_total" in text


def test_token_when_its_file_changes_then_the_new_one_counts_at_once_and_the_former_no_more(tmp_path: Path) -> None:
    file = token_file(tmp_path)
    with reached(file) as address:
        for token in ("second", "third1", "fourth"):  # also of one length, within the clock's grain
            token_file(tmp_path, token)
            assert [asked(address, each)[0] for each in (TOKEN, token)] == [401, 200]
        file.write_text("in its place\n")  # no token: nobody is answered until there is one
        assert asked(address, "fourth")[0] == 503
        file.unlink()
        assert asked(address, "fourth") == (503, "the token of this port can't be read; its log says why\n")
        assert asked(address, None, "/livez")[0] == 200
        token_file(tmp_path, "fifth")
        assert asked(address, "fifth")[0] == 200


def test_token_when_its_file_can_not_be_used_then_it_is_logged_once_and_without_what_is_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = token_file(tmp_path)
    with reached(file) as address:
        file.write_text("two words\n")
        assert [asked(address)[0] for _ in range(3)] == [503] * 3
    (record,) = caplog.records
    assert str(file) in record.getMessage() and "has no token" in record.getMessage()
    assert "two words" not in caplog.text


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o666, 0o601])
def test_token_when_others_may_read_or_change_its_file_then_refused_also_while_it_is_used(
    mode: int, tmp_path: Path
) -> None:
    file = token_file(tmp_path)
    kept = KeptToken(file)
    assert kept.matches(f"Bearer {TOKEN}")
    file.chmod(mode)
    with pytest.raises(TokenExposed, match=f"mode {mode:03o}"):
        kept.matches(f"Bearer {TOKEN}")
    with pytest.raises(ListenRefused, match=f"mode {mode:03o}.*chmod 600"), reached(file):
        raise AssertionError("unreachable")
    for right in (0o600, 0o400, 0o440):
        file.chmod(right)
        assert kept.matches(f"Bearer {TOKEN}")


@pytest.mark.parametrize("content", [None, b"", b"a b\n", b"\xff\n", b"x" * 5_000 + b" y"])
def test_token_when_its_file_has_none_then_nothing_listens(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    with pytest.raises(ListenRefused, match="reading the token for metrics"), reached(file):
        raise AssertionError("unreachable")


def test_token_when_a_read_only_mount_has_it_then_its_mode_is_the_mounts(tmp_path: Path) -> None:
    """As containers get their secrets."""
    file = token_file(tmp_path)
    file.chmod(0o444)
    program = f"from menura.token_file import KeptToken; from pathlib import Path; KeptToken(Path({str(file)!r}))"
    python = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "proto")}
    mount = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,bind,ro "{tmp_path}" && exec "$@"'
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything: the test needs root, or namespaces of users")
    assert subprocess.run(python, env=environment, capture_output=True, check=False).returncode != 0
    subprocess.run([*words, *python], env=environment, check=True)


def test_commands_when_others_would_reach_their_metrics_then_do_not_start_without_a_token(tmp_path: Path) -> None:
    listen = ["--metrics", "0.0.0.0:0"]
    gateway = menura("gateway", "run", "--database", f"sqlite:///{tmp_path}/c.db", "--landing", str(tmp_path), *listen)
    sink = menura("sink", "run", "--landing", str(tmp_path), "--lake", str(tmp_path / "lake"), *listen)
    for done in (gateway, sink):
        assert done.returncode != 0 and "Give --metrics-token-file FILE" in done.stderr, done.stderr
    assert not (tmp_path / "c.db").exists() and not (tmp_path / "lake").exists()
