"""The file that says which views there shall be, where no control plane does."""

import logging
from dataclasses import dataclass
from pathlib import Path

from menura.views.definition import ViewDefinition, decode_views

from spark_sink.errors import SinkSettingInvalid

logger = logging.getLogger("menura.sink")


@dataclass(slots=True)
class ViewsFile:
    """A document of definitions, which is written anew by a rename when they change."""

    path: Path
    seen: tuple[int, int, int] = (0, 0, 0)

    def changed(self) -> tuple[ViewDefinition, ...] | None:
        """What it says, if that is new; what can't be read leaves the former one in force, and the log says so."""
        try:
            return self.read()
        except SinkSettingInvalid as wrong:
            logger.warning("views stay as they were error=%s", wrong)
            return None

    def read(self) -> tuple[ViewDefinition, ...] | None:
        """Raises `SinkSettingInvalid`."""
        try:
            found = self.path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self.seen:
                return None
            self.seen = seen
            return decode_views(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as wrong:
            raise SinkSettingInvalid(
                "reading the definitions of views",
                f"{self.path}: {wrong if isinstance(wrong, ValueError) else type(wrong).__name__}",
                remedy="Write the file anew; docs/views.md says what is in it",
            ) from wrong
