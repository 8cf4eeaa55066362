"""Opening an address of the sink's: landing, lake or checkpoint."""

from menura.stores.opening import open_store
from menura.stores.store import Store, StoreUnusable

from spark_sink.errors import SinkSettingInvalid


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
