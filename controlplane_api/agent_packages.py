"""Packages of the agent that a tenant has uploaded, in the database, so that each gateway has them.

Comes in: what `make packages` writes: SHA256SUMS, its signature, and the bytes of the files that it names, in order.
Goes out: releases, whose packages orders name, and their bytes by offset. A release is announced whole (`begin`), its
files' bytes come in parts (`append`), and it counts once each file has come and has its sum: `compare` reads, and
`settle` changes what was compared and nothing else. Each is one transaction. A kill between two leaves a release that
is never offered: the same `begin` goes on where it was, and one of which nothing came for `ABANDONED_US` goes with the
next `begin`. A tenant has at most `MOST_RELEASES` and `MOST_BYTES`, which count from the announcement. Whether the
signature is good is the host's to say, whose DBA has put the key there.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Update, case, delete, func, insert, select, update

from controlplane_api.errors import PackageInvalid, ReleaseInUse, ReleasesTooMany, ReleaseUnknown, UploadOutOfOrder
from controlplane_api.models import AgentPackage, AgentPackagePiece, AgentRelease, AnyRow, Rollout, RolloutAgent
from controlplane_api.rollout_states import IN_WORK, OPEN
from controlplane_api.tenants import lock_tenant

#: as they travel to agents
PIECE_BYTES = 128 << 10
#: of one request that brings bytes: whole pieces
MOST_PART_BYTES = 8 * PIECE_BYTES
MOST_RELEASES, MOST_BYTES = 8, 8 << 30
MOST_FILES = 32
MOST_SUMS_BYTES, MOST_SIGNATURE_BYTES = 64 << 10, 4 << 10
ABANDONED_US = 24 * 3_600_000_000

_NAME = re.compile(
    r"menura-agent-(?P<version>[0-9A-Za-z.+~_]{1,64})-linux-(?P<machine>[0-9a-z_]{1,32})\.(?P<end>deb|rpm|tar\.gz)"
)
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<name>[^/\s]{1,255})")


@dataclass(frozen=True, slots=True)
class PackageName:
    version: str
    format: str
    machine: str


def parse_name(name: str) -> PackageName | None:
    """
    >>> parse_name("menura-agent-0.2.0-linux-x86_64.tar.gz")
    PackageName(version='0.2.0', format='tar', machine='x86_64')
    >>> parse_name("../menura-agent-0.2.0-linux-x86_64.deb") is None
    True
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return PackageName(found["version"], found["end"].partition(".")[0], found["machine"])


def read_sums(sums: bytes) -> dict[str, str]:
    """Sums by the name of the file, as sha256sum writes them; raises `PackageInvalid`."""
    try:
        lines = sums.decode("ascii").splitlines()
    except UnicodeDecodeError as strange:
        raise _invalid("SHA256SUMS is no text") from strange
    found: dict[str, str] = {}
    for line in lines:
        read = _LINE.fullmatch(line)
        if read is None or read["name"] in found:
            raise _invalid("SHA256SUMS has a line that is no sum, or names a file twice")
        found[read["name"]] = read["sha256"]
    return found


def begin(
    connection: Connection, tenant_id: int, sums: bytes, signature: bytes, sizes: Mapping[str, int], at_us: int
) -> str:
    """Announce a release, by the sizes of its files; its version. Announced before with the same sums, it goes on.

    Raises `PackageInvalid` and `ReleasesTooMany`.
    """
    lock_tenant(connection, tenant_id)
    _forget_abandoned(connection, tenant_id, at_us)
    files = _checked(sums, signature, sizes)
    version = next(iter(files.values())).version
    former = _row(connection, tenant_id, version)
    if former is not None and former.sums == sums:
        connection.execute(_changed(former.id, at_us).values(signature=signature))
        return version
    if former is not None:
        raise _invalid(f"version {version} is here with other sums; remove it first: menura upgrade remove {version}")
    _check_room(connection, tenant_id, sum(sizes.values()))
    release_id = connection.execute(
        insert(AgentRelease)
        .values(
            tenant_id=tenant_id, version=version, sums=sums, signature=signature, size_bytes=sum(sizes.values()),
            created_at_us=at_us, changed_at_us=at_us,
        )
        .returning(AgentRelease.id)
    ).scalar_one()  # fmt: skip
    of_name = read_sums(sums)
    rows = [
        {"release_id": release_id, "name": name, "format": file.format, "machine": file.machine,
         "sha256": of_name[name], "size_bytes": sizes[name]}
        for name, file in files.items()
    ]  # fmt: skip
    connection.execute(insert(AgentPackage), rows)
    return version


def _checked(sums: bytes, signature: bytes, sizes: Mapping[str, int]) -> dict[str, PackageName]:
    if not 0 < len(sums) <= MOST_SUMS_BYTES or not 0 < len(signature) <= MOST_SIGNATURE_BYTES:
        found = f"SHA256SUMS has {len(sums)} bytes and its signature {len(signature)}"
        raise _invalid(f"{found}; they may have {MOST_SUMS_BYTES} and {MOST_SIGNATURE_BYTES}, and none is empty")
    named = {name: parse_name(name) for name in read_sums(sums)}
    files = {name: file for name, file in named.items() if file is not None}
    if not 0 < len(files) <= MOST_FILES or len({file.version for file in files.values()}) != 1:
        raise _invalid("SHA256SUMS names no package of the agent, too many, or those of several versions")
    if files.keys() != sizes.keys():
        raise _invalid("the files that are announced are not those that SHA256SUMS names")
    if any(not 0 < size <= MOST_BYTES for size in sizes.values()):
        raise _invalid("a file is empty, or has more bytes than a tenant may have")
    return files


def _check_room(connection: Connection, tenant_id: int, more_bytes: int) -> None:
    held = connection.execute(
        select(func.count(AgentRelease.id), func.coalesce(func.sum(AgentRelease.size_bytes), 0)).where(
            AgentRelease.tenant_id == tenant_id
        )
    ).one()
    if held[0] >= MOST_RELEASES or held[1] + more_bytes > MOST_BYTES:
        raise ReleasesTooMany(
            "adding a version of the agent",
            f"the tenant has {held[0]} versions with {held[1]} bytes, this one has {more_bytes}, and it may have"
            f" {MOST_RELEASES} with {MOST_BYTES}",
            data="Nothing was stored.",
            remedy="Remove one that no agent needs: menura upgrade packages, then menura upgrade remove VERSION.",
        )


def _forget_abandoned(connection: Connection, tenant_id: int, at_us: int) -> None:
    old = select(AgentRelease.id).where(
        AgentRelease.tenant_id == tenant_id,
        AgentRelease.complete.is_(False),
        AgentRelease.changed_at_us < at_us - ABANDONED_US,
    )
    for release_id in connection.execute(old).scalars().all():
        _delete(connection, release_id)


def append(
    connection: Connection, tenant_id: int, version: str, name: str, offset: int, data: bytes, at_us: int
) -> int:
    """The next bytes of a file; how many of it are here. Those that are here already change nothing.

    Raises `ReleaseUnknown`, `PackageInvalid`, and `UploadOutOfOrder` where bytes before these have not come.
    """
    row = _locked_file(connection, tenant_id, version, name)
    if row.complete or offset + len(data) <= row.received_bytes:
        return int(row.received_bytes)
    if offset != row.received_bytes:
        raise UploadOutOfOrder(
            "storing a package of the agent",
            f"bytes of {name} from {offset}, and {row.received_bytes} are here",
            data="Nothing of them was stored.",
            remedy="Run the same menura upgrade add again: it goes on where it was.",
        )
    reached = offset + len(data)
    is_last = reached == row.size_bytes
    if not data or reached > row.size_bytes or len(data) > MOST_PART_BYTES or (len(data) % PIECE_BYTES and not is_last):
        raise _invalid(f"{len(data)} bytes of {name} from {offset}, which are no part of its {row.size_bytes}")
    first = offset // PIECE_BYTES
    pieces = [
        {"package_id": row.id, "number": first + number, "data": data[begin : begin + PIECE_BYTES]}
        for number, begin in enumerate(range(0, len(data), PIECE_BYTES))
    ]
    connection.execute(insert(AgentPackagePiece), pieces)
    connection.execute(update(AgentPackage).where(AgentPackage.id == row.id).values(received_bytes=reached))
    connection.execute(_changed(row.release_id, at_us))
    return int(reached)


@dataclass(frozen=True, slots=True)
class Compared:
    """A release as it was when the sums of its files were compared; what is decided by it holds for no other state."""

    release: AnyRow
    #: a file whose bytes have another sum than was announced
    wrong: AnyRow | None


def compare(connection: Connection, tenant_id: int, version: str) -> Compared:
    """The files of a release that is not complete with the sums that were announced. Reads all bytes of it.

    Raises `ReleaseUnknown`, and `PackageInvalid` where a file has not come whole.
    """
    row = release_row(connection, tenant_id, version)
    if row.complete:
        return Compared(row, None)
    for file in connection.execute(select(AgentPackage).where(AgentPackage.release_id == row.id)).all():
        if file.received_bytes < file.size_bytes:
            raise _invalid(f"of {file.name} {file.received_bytes} of {file.size_bytes} bytes have come")
        digest = hashlib.sha256()
        for data in _pieces(connection, file.id):
            digest.update(data)
        if digest.hexdigest() != file.sha256:
            return Compared(row, file)
    return Compared(row, None)


def settle(connection: Connection, compared: Compared, at_us: int) -> bool:
    """The release counts from now on, or the bytes of its wrong file go, so that the file can come anew.

    False: it counted before. Raises `PackageInvalid` where it is not what was compared any more; nothing was changed.
    """
    if compared.release.complete:
        return False
    is_it = AgentRelease.id == compared.release.id
    row = connection.execute(select(AgentRelease).where(is_it).with_for_update()).first()
    if row is not None and row.complete and row.sums == compared.release.sums:
        return False
    if row is None or (row.changed_at_us, row.sums) != (compared.release.changed_at_us, compared.release.sums):
        raise _invalid("they were changed while their sums were compared; run the same menura upgrade add again")
    if compared.wrong is not None:
        file_id = compared.wrong.id
        connection.execute(delete(AgentPackagePiece).where(AgentPackagePiece.package_id == file_id))
        connection.execute(update(AgentPackage).where(AgentPackage.id == file_id).values(received_bytes=0))
    is_complete = compared.wrong is None
    connection.execute(_changed(row.id, at_us).values(complete=is_complete))
    return True


def wrong_sum(name: str) -> PackageInvalid:
    return _invalid(f"the bytes of {name} have another sum than SHA256SUMS says; they are not kept")


def _changed(release_id: int, at_us: int) -> Update:
    """Each change has a later time than the one before, so that `settle` sees it, whatever a clock does."""
    last = AgentRelease.changed_at_us
    later = case((last >= at_us, last + 1), else_=at_us)
    return update(AgentRelease).where(AgentRelease.id == release_id).values(changed_at_us=later)


def _pieces(connection: Connection, package_id: int) -> Iterator[bytes]:
    """A few at a time: a file is larger than what a process should hold."""
    piece, number = AgentPackagePiece, 0
    while True:
        statement = select(piece.data).where(piece.package_id == package_id, piece.number >= number)
        some = connection.execute(statement.order_by(piece.number).limit(32)).scalars().all()
        yield from some
        if len(some) < 32:
            return
        number += 32


def remove(connection: Connection, tenant_id: int, version: str) -> None:
    """It is no longer there. Raises `ReleaseUnknown`, or `ReleaseInUse` while a rollout that is not over needs it."""
    lock_tenant(connection, tenant_id)
    row = release_row(connection, tenant_id, version)
    agent = RolloutAgent
    needs = (
        select(Rollout.id)
        .outerjoin(agent, (agent.rollout_id == Rollout.id) & agent.state.in_(IN_WORK))
        .where(
            Rollout.tenant_id == tenant_id,
            Rollout.state.in_(OPEN),
            (Rollout.version.in_((version, ""))) | (agent.former_version == version),
        )
        .limit(1)
    )
    rollout = connection.execute(needs).scalar()
    if rollout is not None:
        raise ReleaseInUse(
            "removing a version of the agent",
            f"rollout {rollout} needs {version}, or may need it as the way back",
            data="Nothing was removed.",
            remedy="Wait for its end, or end it first: menura upgrade cancel.",
        )
    _delete(connection, row.id)


def _delete(connection: Connection, release_id: int) -> None:
    files = select(AgentPackage.id).where(AgentPackage.release_id == release_id)
    connection.execute(delete(AgentPackagePiece).where(AgentPackagePiece.package_id.in_(files)))
    connection.execute(delete(AgentPackage).where(AgentPackage.release_id == release_id))
    connection.execute(delete(AgentRelease).where(AgentRelease.id == release_id))


def read(connection: Connection, package_id: int, offset: int, size_bytes: int) -> bytes:
    """At most `PIECE_BYTES` of a file from an offset, fewer only at its end; empty: nothing is there."""
    if not 0 <= offset < size_bytes:
        return b""
    first, within = divmod(offset, PIECE_BYTES)
    piece = AgentPackagePiece
    numbers = (first,) if within == 0 else (first, first + 1)
    statement = select(piece.data).where(piece.package_id == package_id, piece.number.in_(numbers))
    data = b"".join(connection.execute(statement.order_by(piece.number)).scalars())
    return data[within : within + PIECE_BYTES]


def release_row(connection: Connection, tenant_id: int, version: str) -> AnyRow:
    """Raises `ReleaseUnknown`."""
    row = _row(connection, tenant_id, version)
    if row is None:
        raise _unknown(version)
    return row


def _row(connection: Connection, tenant_id: int, version: str) -> AnyRow | None:
    is_it = (AgentRelease.tenant_id == tenant_id, AgentRelease.version == version)
    return connection.execute(select(AgentRelease).where(*is_it)).first()


def _locked_file(connection: Connection, tenant_id: int, version: str, name: str) -> AnyRow:
    row = connection.execute(
        select(AgentPackage, AgentRelease.complete)
        .join(AgentRelease, AgentRelease.id == AgentPackage.release_id)
        .where(AgentRelease.tenant_id == tenant_id, AgentRelease.version == version, AgentPackage.name == name)
        .with_for_update(of=AgentPackage)
    ).first()
    if row is None:
        raise _unknown(f"{version} with a file {name}")
    return row


def _unknown(what: str) -> ReleaseUnknown:
    return ReleaseUnknown(
        "looking for a version of the agent",
        f"the tenant has no version {what}",
        data="Nothing was changed.",
        remedy="menura upgrade packages has all; add one with menura upgrade add DIR.",
    )


def _invalid(found: str) -> PackageInvalid:
    return PackageInvalid(
        "storing packages of the agent",
        found,
        data="Nothing of it is offered to agents.",
        remedy="Give the folder that make packages has written, with SHA256SUMS and SHA256SUMS.sig, unchanged.",
    )
