"""The connection's certificate while the agent runs: renewed well before it ends, and taken over when files change.

Comes in: the files of `agent.identity`, the gateway's answers on Control_Config. Goes out: requests there, and the file
that an answer replaces. Files that somebody else replaces are noticed likewise, be they an enrolment or those of an
operator's own CA: the channel dials anew, and each stream opens again on the new connection.

A kill between answer and file leaves the former certificate, which is good for two thirds of its life still.
"""

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

from menura.identity import SKEW_SECONDS
from menura.v1 import config_pb2, stream_pb2

from agent.errors import IdentityUnusable
from agent.identity import CredentialFiles, Identity, IdentityFile, Stamp, certificate_for
from agent.runtime.session import GatewayChannel, StreamClosed, StreamWriter

log = logging.getLogger("menura.identity")

LOOK_SECONDS = 1.0
#: of a certificate's life, after which the next one is asked for
RENEW_AFTER = 1 / 3
#: between two requests: a part of the certificate's life, within these
RETRY_PART, LEAST_RETRY_SECONDS, MOST_RETRY_SECONDS = 1 / 20, 1.0, 60.0


class Renewal:
    """`opened`, `received` and `closed` come from the Control_Config stream's thread and do not block."""

    def __init__(self, files: CredentialFiles | None, channel: GatewayChannel) -> None:
        self._files = files
        self._channel = channel
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._answer: bytes | None = None
        self._stopping = False
        self._asked_at = 0.0
        self._read: tuple[Stamp, Identity | None] = ((), None)
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="identity", daemon=True)
        if files is not None:
            self._thread.start()

    def opened(self, writer: StreamWriter) -> None:
        with self._changed:
            self._writer = writer

    def closed(self) -> None:
        with self._changed:
            self._writer = None

    def received(self, certificate: config_pb2.Certificate) -> None:
        with self._changed:
            self._answer = certificate.certificate_pem
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._files is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._answer is not None, LOOK_SECONDS)
                if self._stopping:
                    return
                answer, self._answer, writer = self._answer, None, self._writer
            try:
                self._step(answer, writer)
            except IdentityUnusable as unusable:
                if str(unusable) != self._told:
                    log.warning("the identity can not be used", extra={"fields": {"error": str(unusable)}})
                self._told = str(unusable)
            except Exception as defect:
                if repr(defect) != self._told:  # else it would be told each second
                    log.exception("defect", extra={"fields": {"thread": self._thread.name}})
                self._told = repr(defect)

    def _step(self, answer: bytes | None, writer: StreamWriter | None) -> None:
        if isinstance(self._files, IdentityFile):
            if answer is not None:
                self._take(self._files, answer)
            identity = self._identity(self._files)
            if writer is not None and _is_due(identity, datetime.now(UTC)):
                self._ask(identity, writer)
        self._channel.follow_files()
        self._told = ""

    def _identity(self, file: IdentityFile) -> Identity:
        stamp, identity = self._read
        if identity is None or file.stamp() != stamp:
            stamp = file.stamp()
            identity = file.load()
            self._read = stamp, identity
        return identity

    def _ask(self, identity: Identity, writer: StreamWriter) -> None:
        life_seconds = (identity.not_after - _made_at(identity)).total_seconds()
        spacing_seconds = min(max(life_seconds * RETRY_PART, LEAST_RETRY_SECONDS), MOST_RETRY_SECONDS)
        if time.monotonic() - self._asked_at < spacing_seconds:
            return
        self._asked_at = time.monotonic()
        request = config_pb2.CertificateRequest(request=identity.request())
        try:
            writer.send(stream_pb2.StreamResponse(certificate_request=request))
        except StreamClosed:
            self._asked_at = 0.0  # the next stream is asked at once

    def _take(self, file: IdentityFile, answer: bytes) -> None:
        identity = self._identity(file)
        try:
            certificate = certificate_for(answer, identity.tenant, identity.agent, identity.facts.public_key)
            renewed = file.write(identity.key, identity.request(), certificate, identity.ca)
        except ValueError as strange:
            raise IdentityUnusable(
                "renewing the certificate",
                f"the gateway's answer is none for this agent ({type(strange).__name__})",
                data="The former certificate is kept",
                remedy="It is asked for again by itself; if it repeats, use the same version on both sides",
            ) from strange
        log.info("certificate renewed", extra={"fields": {"expires": renewed.not_after.isoformat()}})


def _made_at(identity: Identity) -> datetime:
    return identity.not_before + timedelta(seconds=SKEW_SECONDS)


def _is_due(identity: Identity, now: datetime) -> bool:
    made_at = _made_at(identity)
    return now >= made_at + (identity.not_after - made_at) * RENEW_AFTER
