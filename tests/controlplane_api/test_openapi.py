"""The API does what its own document says: schemathesis makes requests from it and judges the answers.

The requests go over HTTP to the API over a database with rows: a source with tables that stream or wait, a dump, a
lake, a token. They are the same in each run.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from controlplane_api.api import attempts
from controlplane_api.api.app import Access
from controlplane_api.api.problem_types import problem_types
from controlplane_api.api.problems import problem_response
from controlplane_api.database import Database
from controlplane_api.errors import ControlPlaneError
from controlplane_api.identity.callers import Role
from controlplane_api.models import AuditEntry
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_api import SHOP, path_of, post, problem
from tests.controlplane_api.test_dump_api import stream_orders
from tests.stack import http_client

DOCUMENT = "/api/v1/openapi.json"
#: answers without an end, for each of which schemathesis waits ten seconds; see test_event_stream.py, test_live.py
OF_SOURCE = "/api/v1/tenants/{tenant}/sources/{source}"
STREAMS = (f"{OF_SOURCE}/events", f"{OF_SOURCE}/verdicts/events", "/api/v1/tenants/{tenant}/live")
JSON = {"content-type": "application/json"}
#: A cursor is a text of ours, which no schema describes; a position is the server's.
LEFT_OUT = "positive_data_acceptance"
#: what is refused before the database is asked, and so is the same on each
OF_NO_DATABASE = "ignored_auth"


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "known"),
    [("sqlite", False), pytest.param("postgresql", True, marks=pytest.mark.needs_setup)],
)
def test_document_when_requests_are_made_from_it_then_no_answer_deviates_and_none_is_a_failure(
    kind: str, database: Database, registry: SqlRegistry, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an administrator. On SQLite one of the checks is that a request without the token is refused.

    HEAD is left out where names are known: there it is GET without its body, as another test shows of each path.
    """
    monkeypatch.setattr(attempts, "BURST_OF_ADDRESS", 1_000_000)
    monkeypatch.setattr(attempts, "BURST_OF_TOKEN", 1_000_000)
    admin = made(database, Role.ADMIN, None)
    with serving(database, access=Access()) as url, http_client(url) as client:
        client.headers.update(admin.headers)
        client.get(DOCUMENT)  # made once, which may take longer than schemathesis waits
        names = known_names(client, registry)
        lines = [f'headers = {{ Authorization = "Bearer {admin.token}" }}']
        lines += ["[parameters]", *(f'{name} = "{value}"' for name, value in names.items())] if known else []
        (tmp_path / "schemathesis.toml").write_text("\n".join(lines))
        command = [sys.executable, "-m", "schemathesis.cli", "run", url + DOCUMENT]
        options = ["--seed=1", "--phases=examples,coverage,fuzzing", "--max-examples=2", "--checks=all", "--workers=1"]
        left_out = [LEFT_OUT] if kind == "sqlite" else [LEFT_OUT, OF_NO_DATABASE]
        options += [f"--exclude-checks={','.join(left_out)}", *(["--exclude-method=HEAD"] if known else [])]
        done = subprocess.run(
            [*command, *options, "--no-color", *(f"--exclude-path={stream}" for stream in STREAMS)],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert "Tested: " in done.stdout and "Unresolvable" not in done.stdout
    assert "Missing authentication" not in done.stdout, done.stdout
    with database.read() as connection:
        done_of_admin = connection.execute(select(AuditEntry.action).where(AuditEntry.refused == "")).scalars().all()
    assert len(set(done_of_admin)) > 3, done_of_admin  # the requests were let through


def test_document_when_nobody_is_known_then_each_operation_is_refused_that_says_so_and_no_other(
    database: Database,
) -> None:
    with serving(database, access=Access()) as url, http_client(url) as client:
        assert client.get(DOCUMENT).status_code == 401
        document = client.get(DOCUMENT, headers=made(database, Role.VIEWER).headers).json()
        wanted = {
            (method, path)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if operation.get("security")
        }
        assert {
            operation for operation in wanted if "401" not in document["paths"][operation[1]][operation[0]]["responses"]
        } == set()
        refused = set()
        for path, methods in document["paths"].items():
            for method in methods:
                answer = client.request(
                    method, re.sub(r"\{\w+\}", "x", path), json=None if method in ("get", "head") else {}
                )
                if answer.status_code == 401:
                    refused.add((method, path))
    assert refused == wanted
    assert len(document["components"]["securitySchemes"]) == 2


def test_problem_when_its_type_is_asked_for_then_a_page_says_cause_and_fix(client: httpx.Client) -> None:
    unknown = problem(client.get("/api/v1/tenants/acme/sources/shop"), 404, "SOURCE_UNKNOWN")
    page = client.get(unknown["type"]).json()
    assert (page["code"], page["status"]) == ("SOURCE_UNKNOWN", 404)
    assert page["cause"] and page["fix"]
    shown = client.get(unknown["type"], headers={"accept": "text/html,*/*"})
    assert shown.headers["content-type"].startswith("text/html") and page["fix"] in shown.text
    problem(client.get("/api/v1/problems/none"), 404, "PROBLEM_UNKNOWN")


def test_types_of_problems_when_listed_then_each_that_an_answer_can_have_says_cause_and_fix() -> None:
    known = {each.code: each for each in problem_types()}
    assert all(each.cause and each.fix for each in known.values())
    answered = [error for error in _below(ControlPlaneError) if error.status < 500 and not error.__subclasses__()]
    assert len(answered) > 20
    assert {error.code for error in answered} <= known.keys()


def _below(error: type[ControlPlaneError]) -> Iterator[type[ControlPlaneError]]:
    for below in error.__subclasses__():
        yield below
        yield from _below(below)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"tables": [{"database": "a", "table": "b"}, {"database": "\\u0000", "table": "b"}]}', "#/tables/1/database"),
        ('{"tables": [{"database": "\\ud800", "table": "x"}]}', "#/tables/0/database"),
        ('{"tables": [{"database": "shop"}]}', "#/tables/0/table"),
        ('{"tables": "some"}', "#/tables"),
        ('{"tables": "all", "start": {"position": 5}}', "#/start/position"),
        ("{", "#"),
        ("[" * 100_000, "#"),
        ('{"tables": "\xff"}', "#"),
    ],
)  # fmt: skip
def test_request_when_its_body_is_invalid_then_a_pointer_says_where(
    client: httpx.Client, registry: SqlRegistry, body: str, pointer: str
) -> None:
    stream_orders(client, registry)
    answer = client.post(f"{SHOP}/start", content=body.encode("latin-1"), headers=JSON)
    errors = problem(answer, 422, "REQUEST_INVALID")["errors"]
    assert pointer in [each["pointer"] for each in errors]


@pytest.mark.parametrize(
    "cursor", ["WyJcdWQ4MDAiLCAieCJd", "W1tbW1tb" * 1_000, "WyJhXHUwMDAwIiwgIngiXQ==", "WzFd", "e30=", "W", "\u00e9"]
)
def test_page_when_its_cursor_is_none_of_ours_then_refused(
    client: httpx.Client, registry: SqlRegistry, cursor: str
) -> None:
    """Half a character, deep nesting, a NUL, another list's, an object, no base64, no ASCII."""
    stream_orders(client, registry)
    problem(client.get(f"{SHOP}/tables", params={"cursor": cursor}), 422, "REQUEST_INVALID")


def test_head_when_asked_for_then_the_get_without_its_body(client: httpx.Client, registry: SqlRegistry) -> None:
    """Of each path of the document, of one that is not there, and of a page."""
    names = known_names(client, registry)
    paths = [path for path, methods in client.get(DOCUMENT).json()["paths"].items() if "get" in methods]
    assert len(paths) > 30
    asked = [
        re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "x"), path) for path in paths if path not in STREAMS
    ]
    answers = []
    for path in [*asked, f"{SHOP}/tables/shop/none", "/"]:
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.headers["content-type"], head.content) == (
            get.status_code, get.headers["content-type"], b"",
        ), path  # fmt: skip
        assert int(head.headers["content-length"]) > 0, path
        answers.append(get.status_code)
    assert answers.count(200) > 20, answers


def known_names(client: httpx.Client, registry: SqlRegistry) -> dict[str, str]:
    """A table that streams and is dumped, and a view of it, by the names of paths."""
    stream_orders(client, registry)
    dump = post(client, path_of("shop", "orders", "/dump"))["dump"]
    post(client, "/api/v1/tenants/acme/views", {"name": "paid", "sql": "SELECT o.id FROM shop.shop.orders AS o"})
    names = {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders", "agent": "agent-1"}
    return {**names, "dump": str(dump), "view": "paid"}


def test_method_when_a_path_lacks_it_then_allow_has_all_that_it_has(client: httpx.Client) -> None:
    answer = client.put("/api/v1/tenants/acme/tokens", json={})
    problem(answer, 405, "METHOD_UNKNOWN")
    assert answer.headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("host", ["127.999.0.1", "127.0.0.1.evil.example", "[::2]", "0.0.0.0", ""])
def test_host_when_it_is_not_loopback_then_refused(client: httpx.Client, host: str) -> None:
    problem(client.get("/healthz", headers={"host": host}), 403, "CROSS_SITE_REFUSED")


def test_problem_when_it_is_made_then_its_type_is_a_path_of_this_api() -> None:
    assert b'"type":"/api/v1/problems/internal"' in problem_response(_Defect("doing", "found")).body


class _Defect(ControlPlaneError):
    code = "INTERNAL"
