"""The configurations of the control plane that the agent runs, on disk: it starts with them while nobody answers.

One file in the state folder, for its owner alone, written beside its place, made durable, then renamed: a kill leaves
the former one or the new one. They hold no secret, but where secrets are. What is lost comes again from the gateway.

::

    {"format": 1, "sources": {"shop": {"generation": 3, "sha256": "...", "document": "{...}"}}}
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from menura.naming import is_identity
from menura.source_configuration import sha256_of

from agent.runtime.state_folder import make_state_folder, state_unusable

log = logging.getLogger("menura.remote")

FILE_NAME = "remote-sources.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Stored:
    generation: int
    sha256: str
    document: str


class RemoteStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME

    def read(self) -> dict[str, Stored]:
        """None of a file that is not there, or is not ours: what is desired comes from the gateway."""
        try:
            stored = self.load()
        except (OSError, ValueError) as broken:
            fields = {"file": str(self._path), "found": type(broken).__name__}
            log.warning(
                "the sources of the control plane can't be read: they come from the gateway", extra={"fields": fields}
            )
            return {}
        return {
            name: one for name, one in stored.items() if is_identity(name) and sha256_of(one.document) == one.sha256
        }

    def load(self) -> dict[str, Stored]:
        """As it stands there, unchecked; none of a file that is not there. Raises OSError, ValueError if not ours."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            stored = {name: Stored(**one) for name, one in found["sources"].items()}
        except FileNotFoundError:
            return {}
        except (TypeError, KeyError, AttributeError) as broken:
            raise ValueError("it has other fields") from broken
        if found.get("format") != FORMAT or not all(isinstance(one.document, str) for one in stored.values()):
            raise ValueError(f"it is not of format {FORMAT}")
        return stored

    def write(self, sources: Mapping[str, Stored]) -> None:
        """Raises `StateFolderUnusable`; the former ones are still there then."""
        make_state_folder(self._folder, "")
        content = json.dumps({"format": FORMAT, "sources": {name: asdict(one) for name, one in sources.items()}})
        beside = self._path.with_name(f"{FILE_NAME}.new")
        try:
            beside.unlink(missing_ok=True)
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.rename(self._path)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, "") from refused
