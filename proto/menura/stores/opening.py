"""From an address to its store."""

from pathlib import Path

from menura.stores.address import absolute, is_local
from menura.stores.local import LocalStore
from menura.stores.options import PROVIDER_OF, StorageOptions, current
from menura.stores.store import Store


def open_store(url: str, options: StorageOptions | None = None) -> Store:
    """The store of a path, of file://..., of s3://, gs://, az:// and abfss://, or of what fsspec knows.

    Raises `StoreUnusable`.
    """
    address = absolute(url)
    if is_local(address):
        return LocalStore(Path(address))
    # only who needs them imports the clients
    if address.partition("://")[0] in PROVIDER_OF:
        from menura.stores.object_store import open_object_store  # noqa: PLC0415

        return open_object_store(address, options or current())
    from menura.stores.file_system import open_file_system  # noqa: PLC0415

    return open_file_system(address, options or current())
