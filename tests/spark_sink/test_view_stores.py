"""Stores of views: whatever becomes of them a view equals its text; they are used, kept up, bounded and removed."""

import fcntl
import json
import logging
import os
import random
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import KeyNumbers, LandedRepair
from menura.views.definition import ViewDefinition

from spark_sink.ingest.view_task import ViewSettings, attempted
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.tail import AT_ONCE
from spark_sink.views import inputs, look_ups, store, store_folders
from spark_sink.views.engine import engine
from spark_sink.views.inputs import Mark, Slice
from spark_sink.views.store import Store, StoreShape, StoreUnusable
from spark_sink.views.store_folders import StoreSettings, remove_others, stores_of
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Chunk, Event, Values, truncate
from tests.spark_sink.view_model import PEOPLE, Named, World, in_lake

VIEW = ("acme", "joined")


def joined(named: Named) -> str:
    return f"SELECT o.id, o.qty, p.name FROM {named('orders')} o LEFT JOIN {named('people')} p ON p.id = o.person"


def world_at(tmp_path: Path, seed: int = 1) -> World:
    world = World(tmp_path, seed)
    world.want(joined=joined)
    world.step(30)
    world.check()
    return world


def step(world: World) -> None:
    """Both tables change, so that rows are looked up both ways."""
    held = {name: dict(rows) for name, rows in world.rows.items()}
    world.land(12, empties=False)
    while any(held[name] == world.rows[name] for name in ("orders", "people")):
        world.land(12, empties=False)
    world.apply()
    world.sink.turn()
    world.check()


def folder_of(world: World) -> Path:
    return Path(world.folder, "stores", store_folders.digest(str(world.lake)), store_folders.digest("acme/joined"))


def manifests(world: World) -> list[Path]:
    return sorted(folder_of(world).glob("*/manifest"))


def count_scans(patch: pytest.MonkeyPatch) -> list[object]:
    """What tables are scanned for, from now on."""
    scanned: list[object] = []
    real = inputs.OpenInput.with_keys

    def with_keys(self: inputs.OpenInput, keys: pa.Table, columns: Sequence[str], on: Sequence[str]) -> pa.Table:
        if keys.num_rows:
            scanned.append(self.at.name)
        return real(self, keys, columns, on)

    patch.setattr(inputs.OpenInput, "with_keys", with_keys)
    return scanned


def test_a_view_when_it_has_stores_then_its_tables_are_not_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    scanned = count_scans(monkeypatch)
    for _ in range(6):
        step(world)
    assert scanned == []
    assert len(manifests(world)) == 2


def test_a_view_when_its_tables_are_small_then_it_has_no_store(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    settings = ViewSettings(str(world.lake), AT_ONCE, KEEP_HOURS, stores=StoreSettings(str(tmp_path / "stores")))
    records = Records(str(world.lake))
    world.sink = Views(
        str(world.lake), records, lambda works: [attempted(settings, each) for each in works], nullcontext()
    )
    world.want(joined=joined)
    world.step(30)
    world.check()
    assert not (tmp_path / "stores").exists()


@pytest.mark.history
@pytest.mark.parametrize(
    ("of", "name", "call"),
    [
        (look_ups.LookUps, "keep_up", 1),
        *((store, "_write", call) for call in (1, 2, 3, 4)),
        (store.Store, "_keep", 1),
        (store.Store, "_keep", 2),
        (store.Store, "_remove_others", 1),
        (store.Store, "_remove_others", 2),
        (store.Store, "_joined", 1),
        (look_ups.shutil, "rmtree", 1),
    ],
)
def test_a_view_when_it_is_killed_as_its_stores_are_written_then_the_next_turns_are_right(
    of: type, name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 1)
    world.want(joined=joined)
    killed = 0
    for changes in (30, 12, 12, 12):
        world.land(changes, empties=False)
        world.apply()
        with monkeypatch.context() as patch:
            kill_at(patch, of, name, call)
            try:
                world.sink.turn()
            except Killed:
                killed += 1
        world.sink = world.new_sink()
        world.sink.turn()
        world.check()
    assert killed
    for _ in range(3):
        step(world)
    scanned = count_scans(monkeypatch)
    step(world)
    assert scanned == []


def lose(folder: Path) -> None:
    shutil.rmtree(folder)


def lose_a_file(folder: Path) -> None:
    for path in folder.glob("*/*-0.arrow"):
        path.unlink()


def shorten(folder: Path) -> None:
    for path in folder.glob("*/*.arrow"):
        path.write_bytes(path.read_bytes()[:-9])


def change_values(folder: Path) -> None:
    for path in folder.glob("*/*-0.arrow"):
        path.write_bytes(path.read_bytes().replace(b"ann", b"xyz"))


def garble(folder: Path) -> None:
    for path in folder.glob("*/manifest"):
        path.write_text('{"format": 1, "identity"')


def say_a_later_version(folder: Path) -> None:
    for path in folder.glob("*/manifest"):
        checksum, _, text = path.read_text().partition(" ")
        said = json.loads(text)
        said["mark"][0] += 1
        path.write_text(f"{checksum} {json.dumps(said)}")


def be_of_another_format(folder: Path) -> None:
    for path in folder.glob("*/manifest"):
        text = path.read_text().partition(" ")[2].replace('"format": 1', '"format": 2')
        path.write_text(f"{zlib.crc32(text.encode())} {text}")


@pytest.mark.parametrize(
    "harm", [lose, lose_a_file, shorten, change_values, garble, say_a_later_version, be_of_another_format]
)
def test_a_view_when_its_stores_are_lost_or_damaged_then_it_is_right_and_they_are_made_again(
    harm: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_at(tmp_path)
    step(world)
    harm(folder_of(world))
    with caplog.at_level(logging.WARNING, "menura.sink"):
        step(world)
    assert ("store of a view not usable" in caplog.text) == (harm is not lose)
    scanned = count_scans(monkeypatch)
    step(world)
    assert scanned == []


def test_a_view_when_older_stores_are_put_back_then_they_take_over_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    shutil.copytree(folder_of(world), tmp_path / "copy")
    step(world)
    step(world)
    shutil.rmtree(folder_of(world))
    shutil.copytree(tmp_path / "copy", folder_of(world))
    scanned = count_scans(monkeypatch)
    step(world)
    assert scanned == []


def test_a_store_when_the_lake_is_an_older_copy_then_it_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_at(tmp_path)
    shutil.copytree(world.lake, tmp_path / "copy")
    held = {name: dict(rows) for name, rows in world.rows.items()}
    followed = world.followed
    step(world)
    shutil.rmtree(world.lake)
    shutil.copytree(tmp_path / "copy", world.lake)
    world.rows, world.followed = held, followed
    world.sink = world.new_sink()
    world.want(joined=lambda named: f"{joined(named)} WHERE o.id >= 0")  # so that it is computed with the older tables
    with caplog.at_level(logging.WARNING, "menura.sink"):
        world.sink.turn()
    world.check()
    assert "is an older copy" in caplog.text
    world.apply()
    world.sink.turn()


def test_stores_when_their_tables_are_emptied_dumped_or_repaired_then_the_view_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    world.writer.cut(truncate(PEOPLE), source="crm")
    world.rows["people"].clear()
    world.apply()
    world.sink.turn()
    world.check()
    step(world)
    people: list[Values] = [{"id": key, "name": "dumped", "country": "de"} for key in range(8)]
    world.writer.cut(Event(PEOPLE, "DUMP_STARTED", dump="dump-1"), source="crm")
    gsn = world.writer.last_gsns["acme", "crm"]
    world.writer.cut(Chunk(PEOPLE, people, gsn=gsn), source="crm")
    world.writer.cut(Event(PEOPLE, "DUMPED", dump="dump-1", removes_rows_before_gsn=gsn - 1), source="crm")
    world.rows["people"] = {each["id"]: each for each in people}
    world.apply()
    world.sink.turn()
    world.check()
    step(world)
    world.writer.cut(Event(PEOPLE, "REPAIR_STARTED", dump="mend"), source="crm")
    gsn = world.writer.last_gsns["acme", "crm"]
    mended: list[Values] = [{"id": key, "name": "mended", "country": None} for key in range(5)]
    world.writer.cut(Chunk(PEOPLE, mended, gsn, 0, "mend", repairs=True), source="crm")
    gone = LandedRepair(gsn, ("id",), (KeyNumbers((4,), ()),))
    world.writer.cut(Event(PEOPLE, "REPAIRED", dump="mend", repaired=gone), source="crm")
    world.rows["people"] = {each["id"]: each for each in mended}
    world.apply()
    world.sink.turn()
    world.check()
    scanned = count_scans(monkeypatch)
    step(world)
    assert scanned == []


def test_stores_when_a_view_has_another_text_then_they_are_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    world.want(
        joined=lambda named: (
            f"SELECT o.id, o.note, c.title FROM {named('orders')} o LEFT JOIN {named('people')} q ON q.id = o.person"
            f" LEFT JOIN {named('countries')} c ON c.code = q.country"
        )
    )
    step(world)
    scanned = count_scans(monkeypatch)
    step(world)
    assert scanned == []
    assert len(manifests(world)) == len(list(folder_of(world).glob("*/"))) == 3


def test_stores_when_they_have_many_changes_then_they_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHANGED_ROWS", 5)
    built: list[Path] = []
    real = Store.build.__func__  # type: ignore[attr-defined]

    def build(cls: type[Store], sql: object, folder: Path, *more: object) -> Store:
        built.append(folder)
        return real(cls, sql, folder, *more)  # type: ignore[no-any-return]

    monkeypatch.setattr(Store, "build", classmethod(build))
    world = world_at(tmp_path)
    for _ in range(4):
        step(world)
    assert len(built) > 2


def test_a_store_when_another_process_has_it_then_the_view_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    before = [path.read_text() for path in manifests(world)]
    scanned = count_scans(monkeypatch)
    with (folder_of(world) / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        step(world)
        assert scanned
        assert [path.read_text() for path in manifests(world)] == before
    scanned.clear()
    step(world)
    assert scanned == []


def test_stores_when_there_is_no_room_then_the_view_scans_and_does_not_try_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(look_ups, "room_bytes", lambda settings: 100)
    with caplog.at_level(logging.WARNING, "menura.sink"):
        world = world_at(tmp_path)
    assert caplog.text.count("larger than the room") == 2
    assert manifests(world) == []
    caplog.clear()
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING, "menura.sink"):
        step(world)
    assert (caplog.text, manifests(world)) == ("", [])
    for path in folder_of(world).glob("*.failed"):
        os.utime(path, (0, 0))
    step(world)
    assert len(manifests(world)) == 2


def test_room_when_stores_are_there_then_it_is_less(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    settings = StoreSettings(str(tmp_path / "stores"), most_bytes=1 << 20)
    used = sum(path.stat().st_size for path in folder_of(world).rglob("*") if path.is_file())
    assert store_folders.room_bytes(settings) == (1 << 20) - used


@pytest.mark.parametrize("place", [0, 1])
def test_room_when_a_file_goes_while_it_is_counted_then_the_others_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """`place`: after how many looks at it."""
    going = tmp_path / "a" / "going"
    going.parent.mkdir()
    for file in (going, going.with_name("staying")):
        file.write_bytes(b"x" * 100)
    looks: list[str] = []

    def removing(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def looked(path: Path | str, **others: bool) -> os.stat_result:
            if Path(path) != going:
                return look(path, **others)
            if len(looks) == place:
                going.unlink(missing_ok=True)
            looks.append(str(path))
            return look(path, **others)

        return looked

    settings = StoreSettings(str(tmp_path), most_bytes=1 << 20)
    with monkeypatch.context() as patched:
        for name in ("stat", "lstat"):
            patched.setattr(os, name, removing(getattr(os, name)))
        room = store_folders.room_bytes(settings)
    assert room == (1 << 20) - (100 if going.exists() else 0) - 100
    assert looks


def test_stores_when_nothing_uses_them_for_long_then_a_turn_of_any_view_removes_them(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    with stores_of(StoreSettings(str(tmp_path / "stores")), "another lake", VIEW) as folder:
        assert folder is not None
    step(world)
    assert folder.path.exists()
    os.utime(folder.path / "lock", (0, 0))
    step(world)
    assert not folder.path.exists()
    assert len(manifests(world)) == 2


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_of_stores_when_others_may_write_there_then_it_is_not_used(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores").chmod(mode)
    with caplog.at_level(logging.WARNING, "menura.sink"):
        world = world_at(tmp_path)
        step(world)
    assert caplog.text.count("others may write there") == 1
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_folder_of_stores_when_it_is_a_link_then_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "stores").symlink_to(tmp_path / "elsewhere")
    step(world_at(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_stores_when_their_view_is_dropped_then_they_are_removed_unless_they_are_in_use(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    settings = StoreSettings(str(tmp_path / "stores"), least_rows=0)
    remove_others(settings, str(tmp_path / "another lake"), [])
    remove_others(settings, str(world.lake), [VIEW])
    assert len(manifests(world)) == 2
    with stores_of(settings, str(world.lake), VIEW) as folder:
        assert folder is not None
        assert folder.path == folder_of(world)
        remove_others(settings, str(world.lake), [])
        assert len(manifests(world)) == 2
    remove_others(settings, str(world.lake), [])
    assert not folder_of(world).exists()


def test_views_when_others_are_wanted_then_somebody_is_told_which_but_not_before_any_are_known(tmp_path: Path) -> None:
    told: list[object] = []
    records = Records(str(tmp_path))
    views = Views(str(tmp_path), records, lambda _works: [], nullcontext(), keep=lambda names: told.append(set(names)))
    views.turn()
    assert told == []
    for names in (["a", "b"], ["a", "b"], ["b"], []):
        views.want([ViewDefinition("acme", name, joined(in_lake)) for name in names])
        views.turn()
    assert told == [{("acme", "a"), ("acme", "b")}, {("acme", "b")}, set()]


KEYS: dict[str, tuple[pa.DataType, Callable[[random.Random], object]]] = {
    "number": (pa.int64(), lambda choose: choose.choice([-(2**63), -1, 0, 1, 7, 2**63 - 1])),
    "text": (pa.string(), lambda choose: choose.choice(["", "a", "A", "ä", "a ", "\0"])),
    "bytes": (pa.binary(), lambda choose: choose.choice([b"", b"a", b"\xff"])),
    "exact": (pa.decimal128(10, 2), lambda choose: choose.choice([None, 0, 1, -1])),
    "day": (pa.date32(), lambda choose: choose.choice([-1, 0, 1, 20_000])),
    "at": (pa.timestamp("us", "UTC"), lambda choose: choose.choice([-1, 0, 1_700_000_000_000_001])),
}


@pytest.mark.history
@pytest.mark.parametrize("seed", range(12))
def test_a_store_when_keys_of_any_type_change_at_random_then_it_finds_what_a_scan_finds(
    seed: int, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    key = tuple(choose.sample(sorted(KEYS), choose.randrange(1, 4)))
    sought = tuple(choose.sample(sorted(KEYS), choose.randrange(1, 3)))
    columns = pa.schema([*((name, type_) for name, (type_, _) in KEYS.items()), ("value", pa.string())])
    model: dict[tuple[object, ...], dict[str, object]] = {}

    def row() -> dict[str, object]:
        made = {name: None if choose.random() < 0.1 else make(choose) for name, (_, make) in KEYS.items()}
        return {**made, "value": choose.choice([None, "x" * choose.randrange(50)])}

    def table(rows: Sequence[dict[str, object]]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=columns)

    def put(rows: Sequence[dict[str, object]]) -> None:
        for each in rows:
            model[tuple(each[name] for name in key)] = each

    def plain(rows: pa.Table) -> list[str]:
        return sorted(map(repr, rows.to_pylist()))

    put([row() for _ in range(30)])
    indexes = (sought,) if sought != key else ()
    shape = StoreShape(columns, key, indexes, "one")
    with engine() as sql:
        reader = pa.RecordBatchReader.from_batches(columns, table(list(model.values())).to_batches())
        held = Store.build(sql, tmp_path / "store", shape, reader, Mark(0, 0, 0, 0), 1 << 30)
        for number in range(1, 12):
            for on in {key, sought}:
                wanted = table([row() for _ in range(choose.choice([0, 1, 8]))]).select(list(on))
                asked = set(map(repr, wanted.to_pylist()))
                expected = [
                    each
                    for each in table(list(model.values())).to_pylist()
                    if None not in (each[name] for name in on) and repr({name: each[name] for name in on}) in asked
                ]
                found = held.with_keys(sql, wanted, on)
                assert found is not None
                assert found.schema == columns
                assert plain(found) == plain(pa.Table.from_pylist(expected, schema=columns))
            gone = choose.sample(sorted(model, key=repr), min(len(model), choose.randrange(4)))
            for each in gone:
                del model[each]
            came = [row() for _ in range(choose.choice([0, 1, 10]))]
            put(came)
            keys = {tuple(each[name] for name in key) for each in came} | set(gone)
            changed = pa.Table.from_pylist(
                [dict(zip(key, each, strict=True)) for each in sorted(keys, key=repr)],
                schema=pa.schema([columns.field(name) for name in key]),
            )
            new = table([model[each] for each in keys if each in model])
            held.advance(sql, Slice(changed, new.slice(0, 0), new), Mark(number, 0, 0, 0))
            held = Store.open(tmp_path / "store", shape, 1 << 30)
            assert held.mark == Mark(number, 0, 0, 0)
    with pytest.raises(StoreUnusable):
        Store.open(tmp_path / "store", StoreShape(columns, key, indexes, "another"), 1 << 30)
    assert len(list((tmp_path / "store").iterdir())) < 1 + 2 * 8
