"""`menura doctor`'s checks of a store: each over facts, and all at a folder."""

from pathlib import Path

import pytest
from menura.doctor import Result
from menura.stores.examination import StoreFacts, checks, examine
from menura.stores.options import StorageOptions

from tests.doctoring import Broken, assert_mended_by, assert_well

WELL = StoreFacts(
    what="landing", url="/landing", keeps_what_is_there=True, reads=True, lists=True, free_bytes=1 << 40, is_folder=True
)
BROKEN: Broken = {
    "store-opens": ({"open_error": "no such scheme"}, "Correct --landing"),
    "store-writes": ({"write_error": "EACCES"}, "install -d -o $(id -un) /landing"),
    "put-if-absent": ({"keeps_what_is_there": False}, "conditional writes"),
    "read-after-write": ({"reads": False}, "conditional writes"),
    "list-after-write": ({"lists": False}, "s3:ListBucket"),
    "store-deletes": ({"delete_error": "AccessDenied"}, "s3:DeleteObject"),
    "store-disk": ({"free_bytes": 1}, "--keep-landing-hours"),
}


def test_checks_when_all_is_well_then_each_is_ok_and_each_has_a_case_where_it_is_not():
    assert_well(checks, WELL, BROKEN)


@pytest.mark.parametrize("check", BROKEN)
def test_check_when_something_is_wrong_then_says_so_with_what_mends_it(check: str):
    assert_mended_by(checks, WELL, check, BROKEN)


def test_folder_when_it_can_be_used_then_all_is_tried_and_nothing_stays(tmp_path: Path):
    found = {finding.check: finding.result for finding in examine("lake", str(tmp_path), StorageOptions())}
    assert {check for check, result in found.items() if result is not Result.OK} <= {"store-disk"}
    assert list(tmp_path.iterdir()) == []


def test_folder_when_it_is_not_there_yet_then_it_could_be_made_and_is_not(tmp_path: Path):
    found = {finding.check: finding.result for finding in examine("lake", str(tmp_path / "a" / "b"), StorageOptions())}
    assert found["put-if-absent"] is Result.OK
    assert list(tmp_path.iterdir()) == []


def test_folder_when_a_file_is_in_its_place_then_it_can_not_be_written_to(tmp_path: Path):
    (tmp_path / "lake").write_text("")
    found = {finding.check: finding for finding in examine("lake", str(tmp_path / "lake"), StorageOptions())}
    assert found["store-writes"].result is Result.FAILED and found["put-if-absent"].result is Result.UNKNOWN
