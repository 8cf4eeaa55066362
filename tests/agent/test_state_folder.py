"""Files of the agent's state folder."""

import os
from pathlib import Path

from agent.runtime.state_folder import make_state_folder, write_whole


def test_state_file_when_it_is_written_then_its_owner_alone_reads_it_also_after_a_kill(tmp_path: Path) -> None:
    folder, former_umask = tmp_path / "state", os.umask(0o022)
    try:
        make_state_folder(folder, "shop")
        path = folder / "shop.definitions.json"
        path.with_suffix(".json.new").write_bytes(b"half of")  # as a former version left it, open to others
        write_whole(path, b"whole")
    finally:
        os.umask(former_umask)
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert path.read_bytes() == b"whole"
    assert [each.name for each in folder.iterdir()] == [path.name]
