"""Opening an address of the sink's: landing, lake or checkpoint."""

from collections.abc import Sequence

from menura.instants import instant_text
from menura.stores.opening import open_store
from menura.stores.options import parse, use
from menura.stores.reasons import reason_of
from menura.stores.store import Store, StoreUnusable

from spark_sink.errors import SinkSettingInvalid, StoreAway


def use_options(words: Sequence[str]) -> None:
    """How each address is reached from now on: KEY=VALUE, as arguments have them. Raises `SinkSettingInvalid`."""
    try:
        use(parse(words))
    except StoreUnusable as refused:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--storage-option: {refused}",
            remedy="Correct it; docs/production.md names the keys",
        ) from refused


def open_storage(url: str) -> Store:
    """Raises `SinkSettingInvalid`. Nothing is asked of the store yet."""
    try:
        return open_store(url)
    except StoreUnusable as refused:
        raise SinkSettingInvalid(
            "opening storage",
            f"{url} can't be opened: {refused}",
            remedy="Check --landing, --lake and --storage-option",
        ) from refused


def store_away(url: str, failure: Exception, since_us: int) -> StoreAway:
    return StoreAway(
        f"asking the store of {url}",
        f"{reason_of(failure)}, since {instant_text(since_us)}",
        data="Nothing is lost: what was not checkpointed will be done again",
        remedy="The sink tries on by itself. Check that the store is reached from here, that the bucket is there, and"
        " that --storage-option and the environment have an account which may list, read, write and delete in it",
    )
