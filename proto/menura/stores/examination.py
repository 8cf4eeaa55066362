"""Whether a landing's or a lake's store does what commits rest upon: `menura doctor`'s checks of it, and who asks it.

What is asked is asked of the store itself: an empty file below `FOLDER` is put where there is none, twice, read, listed
and removed. `checks` are pure.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from menura.doctor import Checks, Finding, Verdict, failed, ok, unknown, warning
from menura.host_facts import free_bytes
from menura.stores.address import absolute, is_local
from menura.stores.file_system import FileSystemStore
from menura.stores.opening import open_store
from menura.stores.options import StorageOptions
from menura.stores.reasons import reason_of
from menura.stores.store import Store, StoreUnusable

checks = Checks["StoreFacts"]()

#: hidden from whoever lists a landing's or a lake's files
FOLDER = "_menura-doctor"
LEAST_FREE_BYTES = 5 << 30
_CONDITIONAL = "Use a folder, or a store with conditional writes: Amazon S3, MinIO, Ceph and others have them"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """None: could not be asked."""

    #: "landing" or "lake"
    what: str
    url: str
    #: why it can't be opened, written to, and cleaned up; empty: it can
    open_error: str = ""
    write_error: str = ""
    delete_error: str = ""
    #: the second of two puts where there is none was refused
    keeps_what_is_there: bool | None = None
    #: what was put is read and listed
    reads: bool | None = None
    lists: bool | None = None
    #: of fsspec's: one writer alone
    is_of_fsspec: bool = False
    #: of a folder
    free_bytes: int | None = None
    is_folder: bool = False


@checks("store-opens", "Nothing can be committed to a store that can't be opened.")
def store_opens(facts: StoreFacts) -> Verdict:
    if not facts.open_error:
        return ok(f"{facts.url} can be opened")
    return failed(f"{facts.url}: {facts.open_error}", f"Correct --{facts.what} or --storage-option, as the words say")


@checks("store-writes", "What can't be written is not committed, and agents wait.")
def store_writes(facts: StoreFacts) -> Verdict:
    if facts.open_error:
        return unknown("it can't be opened")
    if not facts.write_error:
        return ok("a file can be put there")
    fix = f"install -d -o $(id -un) {facts.url}" if facts.is_folder else "Let these credentials put objects there"
    return failed(facts.write_error, fix)


@checks("put-if-absent", "Commits are entries that are written once; a store that overwrites them loses data.")
def put_if_absent(facts: StoreFacts) -> Verdict:
    if facts.keeps_what_is_there is None:
        return unknown("nothing could be put there")
    if not facts.keeps_what_is_there:
        return failed("a file was put in place of one that was there", _CONDITIONAL)
    if facts.is_of_fsspec:
        return warning("it is looked up and then written, so it takes one writer alone", _CONDITIONAL)
    return ok("the second of two puts was refused")


@checks("read-after-write", "What was committed has to be there for the next reader.")
def read_after_write(facts: StoreFacts) -> Verdict:
    if facts.reads is None:
        return unknown("nothing could be put there")
    return ok("what was put is read") if facts.reads else failed("what was put is not there", _CONDITIONAL)


@checks("list-after-write", "What can't be listed can't be removed once it is old, and the store grows.")
def list_after_write(facts: StoreFacts) -> Verdict:
    if facts.lists is None:
        return unknown("nothing could be put there")
    if facts.lists:
        return ok("what was put is listed")
    return warning("what was put is not listed", "Let these credentials list the store (s3:ListBucket)")


@checks("store-deletes", "What can't be removed stays, and the store grows.")
def store_deletes(facts: StoreFacts) -> Verdict:
    if facts.open_error or facts.write_error:
        return unknown("nothing could be put there")
    if not facts.delete_error:
        return ok("a file can be removed")
    return warning(facts.delete_error, "Let these credentials delete there (s3:DeleteObject)")


@checks("store-disk", "On a full disk nothing is committed, and agents wait.")
def store_disk(facts: StoreFacts) -> Verdict:
    if not facts.is_folder:
        return ok("it is no folder of this host")
    if facts.free_bytes is None:
        return unknown("the disk could not be asked")
    found = f"{facts.free_bytes >> 20} MiB are free"
    if facts.free_bytes >= LEAST_FREE_BYTES:
        return ok(found)
    return warning(found, f"Free 5 GiB of the disk of {facts.url}, or lower --keep-landing-hours or --keep-hours")


def examine(what: str, url: str, options: StorageOptions) -> list[Finding]:
    return checks.of(what, gather(what, url, options))


def gather(what: str, url: str, options: StorageOptions) -> StoreFacts:
    try:
        address = absolute(url)
        store = open_store(address, options)
    except (StoreUnusable, OSError) as unusable:
        words = reason_of(unusable) if isinstance(unusable, OSError) else str(unusable)
        return StoreFacts(what=what, url=url, open_error=words)
    is_folder = is_local(address)
    facts = StoreFacts(
        what=what, url=address, is_folder=is_folder, is_of_fsspec=isinstance(store, FileSystemStore),
        free_bytes=free_bytes(Path(address)) if is_folder else None,
    )  # fmt: skip
    missing = [each for each in (Path(address), *Path(address).parents) if is_folder and not each.exists()]
    found = _tried(facts, store)
    for each in missing:  # a folder that is not there yet is the gateway's or the sink's to make
        with suppress(OSError):
            each.rmdir()
    return found


def _tried(facts: StoreFacts, store: Store) -> StoreFacts:
    path = f"{FOLDER}/{uuid.uuid4().hex}"
    try:
        store.put_if_absent(path, b"")
        facts = replace(facts, keeps_what_is_there=not store.put_if_absent(path, b"again"))
        facts = replace(facts, reads=store.read(path) is not None)
        facts = replace(facts, lists=any(found.path == path for found in store.list(FOLDER)))
    except OSError as refused:
        facts = replace(facts, write_error=_words(refused))
    try:
        store.delete([path])
        store.drop_folder(FOLDER)
    except OSError as refused:
        return replace(facts, delete_error=_words(refused))
    return facts


def _words(refused: OSError) -> str:
    return f"{reason_of(refused)}: {refused.strerror or type(refused).__name__}"
