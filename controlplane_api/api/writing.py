"""How a route writes: on what the caller has seen, once for each key, or not at all, to show what it would do.

Comes in: a command as a function of a transaction, and the headers `Idempotency-Key` and `If-Match` and the parameter
`dry_run` of its request. Goes out: the command's answer. All of it is one transaction, which a kill leaves done or not.

- `dry_run=true`: the command runs, and its transaction is taken back. The answer is what it would have been; names that
  a command makes up, of dumps and operations, are others when it runs.
- `Idempotency-Key`: the answer is stored with what the command changes. The same request with the same key gets it
  again; another one is refused. A command that is refused changes and keeps nothing. A key is its caller's, and known
  for `KEPT_SECONDS`; of a tenant's the newest `MAX_KEYS` are.
- What is done stands in the audit log, once: neither a plan nor the answer of a key does anything. A command about
  tables that was refused for each of them stands there as refused.
- `If-Match`: the source is locked, and the tag compared, before the command runs. A tag (`versions`) changes with what
  commands change; figures that grow by themselves do not change it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Query, Request
from menura.instants import now_us
from sqlalchemy import Connection, delete, select, update
from starlette.responses import Response

from controlplane_api.api.openapi import Responses
from controlplane_api.api.paths import Command, current_command, current_database
from controlplane_api.api.views import Outcomes, View
from controlplane_api.database import Database
from controlplane_api.documents import insert_into
from controlplane_api.errors import AnswerNotKept, IdempotencyKeyReused, PreconditionFailed, RequestInvalid
from controlplane_api.identity import audit
from controlplane_api.models import KeptAnswer

KEPT_SECONDS = 86_400
MAX_KEYS = 2_000
MAX_ANSWER_BYTES = 64 << 10

V = TypeVar("V", bound=View)
Tag = Callable[[Connection], str]

DryRun = Annotated[bool, Query(description="Change nothing: the answer is what would be done.")]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        pattern=r"^[\x21-\x7e]*$",
        description="Of the caller's making; the same request with the same key is carried out once.",
    ),
]
IfMatch = Annotated[
    str,
    Header(alias="If-Match", max_length=1_024, description="An ETag: the command is refused if it is another one now."),
]
TAGGED: Responses = {200: {"headers": {"ETag": {"description": "For If-Match.", "schema": {"type": "string"}}}}}
#: errors of routes that take a key, and of those that take a version too
KEYED = (RequestInvalid, IdempotencyKeyReused, AnswerNotKept)
GUARDED = (*KEYED, PreconditionFailed)


@dataclass(frozen=True, slots=True)
class Writing:
    database: Database
    command: Command
    response: Response
    request_sha256: str
    dry_run: bool
    key: str
    if_match: str

    @property
    def actor(self) -> str:
        """Of the caller, as the audit log names it."""
        return self.command.caller.actor

    def run(self, view: type[V], act: Callable[[Connection], V], tag: Tag | None = None) -> V:
        """What `act` answers, or has answered before. Raises what it does, and `GUARDED`."""
        with self.database.write() as connection:
            if self.key and not self.dry_run and not self._is_new(connection):
                return view.model_validate_json(self._kept(connection))
            if tag is not None and self.if_match:
                self._check(tag(connection))
            if tag is not None and self.dry_run:
                self.response.headers["etag"] = tag(connection)
            answer = act(connection)
            if tag is not None and not self.dry_run:
                self.response.headers["etag"] = tag(connection)
            if self.dry_run:
                connection.rollback()
                return answer
            if self.command.action:
                refused, why = _refused(answer)
                found = ": ".join(filter(None, (self.command.found, why)))
                audit.record(
                    connection, self.command.tenant, self.actor, self.command.action, refused=refused, found=found
                )
            if self.key:
                self._keep(connection, answer.model_dump_json(by_alias=True))
        return answer

    def _is_new(self, connection: Connection) -> bool:
        """Whether nobody has used the key; another request with it that runs is waited for."""
        now = now_us()
        of_tenant = KeptAnswer.tenant == self.command.tenant
        connection.execute(delete(KeptAnswer).where(KeptAnswer.at_us < now - KEPT_SECONDS * 1_000_000))
        row = {**self._kept_key, "at_us": now, "request_sha256": self.request_sha256}
        added = insert_into(connection, KeptAnswer).values(row).on_conflict_do_nothing().returning(KeptAnswer.key)
        if connection.execute(added).first() is None:
            return False
        at_us = select(KeptAnswer.at_us).where(of_tenant).order_by(KeptAnswer.at_us.desc()).offset(MAX_KEYS).limit(1)
        connection.execute(delete(KeptAnswer).where(of_tenant, KeptAnswer.at_us <= at_us.scalar_subquery()))
        return True

    def _kept(self, connection: Connection) -> str:
        row = connection.execute(select(KeptAnswer).filter_by(**self._kept_key)).one()
        doing, data = "repeating a request", "Nothing was changed this time."
        if row.request_sha256 != self.request_sha256:
            raise IdempotencyKeyReused(
                doing, "another request came with this Idempotency-Key", data=data, remedy="Send it with a new key."
            )
        if row.answer is None:
            raise AnswerNotKept(
                doing,
                "it was carried out before, and its answer was too large to be kept",
                data=data,
                remedy="Read what it has changed.",
            )
        self.response.headers["idempotency-replayed"] = "true"
        return str(row.answer)

    def _keep(self, connection: Connection, answer: str) -> None:
        kept = answer if len(answer.encode()) <= MAX_ANSWER_BYTES else None
        connection.execute(update(KeptAnswer).filter_by(**self._kept_key).values(answer=kept))

    @property
    def _kept_key(self) -> dict[str, str]:
        return {"tenant": self.command.tenant, "caller": self.actor, "key": self.key}

    def _check(self, tag: str) -> None:
        wanted = [each.strip() for each in self.if_match.split(",")]
        if "*" not in wanted and tag not in wanted:
            raise PreconditionFailed(
                "comparing If-Match",
                f"the ETag is {tag} now",
                data="Nothing was changed.",
                remedy="Read it again, and decide anew.",
            )


def _refused(answer: View) -> tuple[str, str]:
    """Code and reason of a command about tables that was refused for each of them; of another one nothing, and how many
    were refused."""
    tables = answer.tables if isinstance(answer, Outcomes) else []
    refused = [(each, each.refused) for each in tables if each.refused is not None]
    if not refused:
        return "", ""
    table, first = refused[0]
    why = f"{table.database}.{table.table}: {first.found}"
    if len(refused) < len(tables):
        return "", f"{len(refused)} of {len(tables)} tables were refused, first {first.code} of {why}"
    return first.code, why if len(tables) == 1 else f"all {len(tables)} tables, first {why}"


async def _writing(request: Request, response: Response, dry_run: DryRun = False, key: Key = "") -> Writing:
    return _of(request, await request.body(), response, dry_run=dry_run, key=key)


async def _writing_if(
    request: Request, response: Response, dry_run: DryRun = False, key: Key = "", if_match: IfMatch = ""
) -> Writing:
    return _of(request, await request.body(), response, dry_run=dry_run, key=key, if_match=if_match)


async def _writing_secret(request: Request, response: Response, dry_run: DryRun = False) -> Writing:
    """Of a route whose answer has a secret, which is not kept."""
    if "idempotency-key" in request.headers:
        raise RequestInvalid(
            "reading a request",
            "its answer has a secret, which is not kept, so that no Idempotency-Key can bring it again",
            data="Nothing was changed.",
            remedy="Leave the header out.",
        )
    return _of(request, b"", response, dry_run=dry_run)


def _of(
    request: Request, body: bytes, response: Response, *, dry_run: bool, key: str = "", if_match: str = ""
) -> Writing:
    said = "\n".join((request.method, str(request.scope["path"]), request.url.query, ""))
    digest = hashlib.sha256(said.encode() + body).hexdigest()
    command = current_command(request)
    return Writing(current_database(request), command, response, digest, dry_run, key, if_match)


#: for a route without a version, for one with it, for one that answers with a secret
Write = Annotated[Writing, Depends(_writing)]
WriteIf = Annotated[Writing, Depends(_writing_if)]
WriteSecret = Annotated[Writing, Depends(_writing_secret)]
