"""`menura search serve` as a command: where it listens, its certificate and token, its figures and its health."""

import re
import ssl
from pathlib import Path

import httpx
import pytest

from spark_sink import search_command
from tests.controlplane_api.test_api_tls import write_certificate
from tests.spark_sink.search_shop import Shop
from tests.stack import Process, wait_for

OF_ORDERS = {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders"}
_URL = re.compile(r"(searches|metrics and health) on (https?://\S+)")


def test_a_service_when_it_runs_then_answers_by_tls_to_its_token_and_says_how_it_is(tmp_path: Path) -> None:
    shop, token = Shop(tmp_path), tmp_path / "token"
    shop.fill()
    shop.index()
    token.write_text("secret")
    write_certificate(tmp_path, "search")
    arguments = ["search", "serve", "--folder", str(shop.indexes), "--listen", "0.0.0.0:0", "--token-file", str(token)]
    arguments += ["--tls-certificate", str(tmp_path / "api.pem"), "--tls-key", str(tmp_path / "api.key")]
    arguments += ["--metrics", "127.0.0.1:0", "--timeout-seconds", "300", "--log-format", "json"]
    with Process(arguments, tmp_path / "serve.log") as serve:
        ports = wait_for("both ports", lambda: len(said := dict(_URL.findall(serve.log.read_text()))) == 2 and said)
        trusted = ssl.create_default_context(cafile=tmp_path / "api.pem")
        url, shown = ports["searches"].replace("0.0.0.0", "localhost"), {"authorization": "Bearer secret"}
        with httpx.Client(base_url=url, verify=trusted, timeout=300) as client:
            answer = client.post("/v1/search", json=OF_ORDERS, headers=shown)
            assert (answer.status_code, answer.json()["total"]) == (200, 40)
            assert client.post("/v1/search", json=OF_ORDERS).status_code == 401
        with httpx.Client(base_url=ports["metrics and health"], timeout=300) as watching:
            assert [watching.get(path).text for path in ("/livez", "/readyz")] == ["ok\n", "ok\n"]
            figures = watching.get("/metrics").text
            assert 'menura_search_questions_total{state="answered"} 1.0' in figures
            assert 'menura_search_questions_total{state="refused"} 1.0' in figures
            assert "menura_search_running 0.0" in figures
            shop.indexes.rename(tmp_path / "elsewhere")
            unready = watching.get("/readyz")
            assert (unready.status_code, watching.get("/livez").status_code) == (503, 200)
            assert unready.text == "the folder of indexes can't be read: No such file or directory\n"
    assert "secret" not in serve.log.read_text()


def test_a_service_when_its_settings_do_not_fit_then_one_line_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two").write_text("two words")
    write_certificate(tmp_path, "search")
    pem, key = str(tmp_path / "api.pem"), str(tmp_path / "api.key")
    token = tmp_path / "token"
    token.write_text("secret")
    wrong = {
        ("--listen", "0.0.0.0:0"): "which need a token and TLS",
        ("--listen", "0.0.0.0:0", "--token-file", str(token)): "which need a token and TLS",
        ("--listen", "[::]:0", "--tls-certificate", pem, "--tls-key", key): "which need a token and TLS",
        ("--listen", "nowhere"): "'nowhere' is not an address",
        ("--listen", "127.0.0.1:70000"): "is not an address",
        ("--tls-key", key): "one is missing",
        ("--tls-certificate", key, "--tls-key", pem): "are no certificate with its key",
        ("--token-file", str(tmp_path / "two")): "has no token",
        ("--token-file", str(tmp_path / "none")): "No such file",
        ("--metrics", "nowhere"): "can't be listened on",
    }
    for words, said in wrong.items():
        monkeypatch.setattr("sys.argv", ["menura search", "serve", "--folder", str(tmp_path), *words])
        assert search_command.main() == 2, words
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.startswith("menura search: SINK_SETTING_INVALID")
        assert said in error, words
