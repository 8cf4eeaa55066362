"""Opening an address: a folder of this machine, or a URL of a file system of Arrow's or fsspec's."""

from functools import cached_property
from pathlib import Path

import fsspec
import pyarrow as pa
from pyarrow import fs

from spark_sink.errors import SinkSettingInvalid


def open_storage(url: str) -> tuple[fs.FileSystem, str]:
    """The file system and the path in it. Raises `SinkSettingInvalid`."""
    if "://" not in url:
        return fs.LocalFileSystem(), str(Path(url).absolute())
    try:
        filesystem, root = fs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        filesystem, root = _open_with_fsspec(url)
    return filesystem, root.rstrip("/")


def _open_with_fsspec(url: str) -> tuple[fs.FileSystem, str]:
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as refused:
        raise SinkSettingInvalid(
            "opening storage", f"{url} can't be opened: {refused}", remedy="Check --landing and --lake"
        ) from refused
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root


class Folder:
    """A folder or file by its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        return open_storage(self.url)

    def child(self, name: str) -> str:
        return f"{self.url}/{name}"

    def has(self, path: str) -> bool:
        """Whether there is such a file in the folder."""
        filesystem, root = self._opened
        return bool(filesystem.get_file_info(f"{root}/{path}").type is not fs.FileType.NotFound)

    def remove(self) -> None:
        """Remove the folder with all that is in it, if it is there."""
        filesystem, root = self._opened
        if filesystem.get_file_info(root).type is not fs.FileType.NotFound:
            filesystem.delete_dir(root)

    def open_output(self) -> pa.NativeFile:
        filesystem, root = self._opened
        filesystem.create_dir(str(Path(root).parent), recursive=True)
        return filesystem.open_output_stream(root)
