"""What holds for a folder alone."""

import tracemalloc
from pathlib import Path

import pytest
from menura.stores.local import LocalStore


def test_folder_when_it_cant_be_read_then_it_is_not_taken_for_an_empty_one(tmp_path: Path):
    (tmp_path / "commits").symlink_to("commits")
    with pytest.raises(OSError, match="symbolic link"):
        list(LocalStore(tmp_path).list("commits"))


def test_document_when_it_is_read_then_memory_is_taken_for_what_is_there(tmp_path: Path):
    """Where memory has a limit, reading a few bytes failed."""
    (tmp_path / "1.json").write_bytes(b"document")
    tracemalloc.start()
    try:
        assert LocalStore(tmp_path).read("1.json") == b"document"
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
