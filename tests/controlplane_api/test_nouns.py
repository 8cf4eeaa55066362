"""The commands' nouns are REST's: each word of `menura` is one of a path, and the other way round, or stands here with
why it is not. `s` at its end makes no other word: a command that lists and one that shows have both.
"""

from collections.abc import Iterator, Mapping

import pytest
from menura import cli

from controlplane_api.cli import COMMANDS, completions
from tests.docs_site.rest_page import document

#: words of `menura` that no path of REST has
OF_COMMANDS_ALONE = {
    # what runs on a host: a process is started there, and by no API
    "api": "runs the API itself",
    "gateway": "runs a gateway",
    "up": "runs gateway, API and sink on one machine",
    "sink": "runs a sink",
    "run": "starts such a process",
    "doctor": "checks the host that it runs on",
    "completion": "prints a script for a shell",
    # what reads a lake's files where it runs, with the store's own rights, and asks no API
    "export": "writes a lake's changes to files, a pipe or Kafka",
    "plugin": "calls Python classes with a lake's changes",
    "tail": "prints a lake's changes",
    "trace": "reads the files of log and lake for one row",
    # what puts answers of several paths together for a person
    "status": "sources with their tables, of .../sources and .../fleet",
    "top": "the same, live, with speeds and dumps",
    "why": "stages of one table's lag, of .../sources/{source} and .../tables/{database}/{table}",
    "progress": "of the last order, of .../operations",
    # a noun of several paths that are verbs
    "sync": "start, stop, retry and resync of .../tables/{database}/{table}/ and of .../sources/{source}/",
    "filter": "is a part of .../sources/{source}/configuration, which it shows and changes",
    "upgrade": "an order of agent-releases and of the rollout that follows",
    "verify": "verifications, verdicts and proofs, by what somebody wants",
    "report": "verdicts, as a document that somebody signs",
    "schedule": "verification-schedule: `verify schedule` has the first half already",
    # methods of HTTP, said in words
    "list": "GET of a collection",
    "show": "GET of one",
    "add": "POST of one that exists elsewhere: an agent, a package, a source's configuration",
    "create": "POST of one that is new",
    "set": "PUT",
    "drop": "DELETE of a view, as SQL says it",
    "explain": "view-plans and .../views/{view}/plan, as SQL says it",
}
#: words of paths that no command has
OF_REST_ALONE = {
    # what the dashboard and its reader's browser need
    "session": "a browser's, with its cookie",
    "end": "of that session",
    "login-links": "`menura login` makes one and opens it",
    "provider": "of identities, to which a browser is sent",
    "callback": "of that provider",
    "live": "what an open page follows",
    "history": "points of a source's plots",
    "problems": "pages of the types of errors, which the errors name",
    # a word of the command is a shorter one, or does several of these
    "fleet": "`menura plan`, `apply` and `status` are of a fleet; /fleet lists tenants: `menura tenants`",
    "configuration": "`menura sources show`, `add`, `change` and `remove`: of a source's one configuration",
    "other-server": "`menura sources show` tells of it, `sources accept` accepts it",
    "definitions": "`menura table show`: how its columns have changed",
    "operations": "`menura sync progress`",
    "check": "`menura ledger --verify`",
    "forget": "`menura lakes --forget`",
    "view-plans": "`menura view explain`, of a view that is not created",
    "search-indexes": "`menura search` reads a lake's indexes; the API lists them for the page Search",
    "agent-releases": "`menura upgrade add`, `packages` and `remove`",
    "complete": "the last step of `menura upgrade add`, which sends packages one after the other",
    "rollout": "`menura upgrade start`, `pause`, `back`, `skip`, ...: a tenant has one at a time",
    "rollout-plans": "`menura upgrade start --plan`",
    "verifications": "`menura verify run`",
    "verification-schedule": "`menura verify schedule`",
    "verdicts": "`menura verify report`",
    "proofs": "`menura verify report`, of all tables",
    "proof": "the same of one",
}


def one(word: str) -> str:
    return word.removesuffix("s")


def words_of_commands() -> set[str]:
    tree = completions()
    assert {place[0] for place in tree} == set(COMMANDS)
    return {*cli.WORDS, *(word for place in tree for word in place[1:])}


def words_of_paths(document: Mapping[str, Mapping[str, object]]) -> set[str]:
    def fixed() -> Iterator[str]:
        for path in document["paths"]:
            if path.startswith("/api/v1/"):
                yield from (part for part in path.split("/")[3:] if not part.startswith("{"))

    return set(fixed())


@pytest.fixture(scope="module")
def paths() -> set[str]:
    return words_of_paths(document())


def test_words_of_commands_when_they_are_compared_with_paths_then_each_is_one_or_is_listed(paths: set[str]) -> None:
    known = {one(word) for word in paths}
    assert {word for word in words_of_commands() if one(word) not in known} == OF_COMMANDS_ALONE.keys()


def test_words_of_paths_when_they_are_compared_with_commands_then_each_is_one_or_is_listed(paths: set[str]) -> None:
    known = {one(word) for word in words_of_commands()}
    assert {word for word in paths if one(word) not in known} == OF_REST_ALONE.keys()


def test_other_words_when_they_lead_to_commands_then_both_have_the_same_noun() -> None:
    """`menura source` is `menura sources`: nobody has to know which of the two it is."""
    for typed, meant in cli.OTHER_WORDS.items():
        assert one(typed[0]) == one(meant[0]), typed
