"""The store: objects are complete or not there, whatever happens to them."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from fa3gen.store import META, Store

FILES = {"kernel.cubin": b"\x7fELF" + bytes(range(256)) * 64, "kernel.ptx": b".version 8.8\n"}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.get("d1") is None
    put = store.put("d1", FILES, {"name": "k"})
    got = store.get("d1")
    assert got == put
    assert got is not None
    assert got.meta["name"] == "k"
    assert got.read("kernel.cubin") == FILES["kernel.cubin"]
    assert [stored.digest for stored in store.objects()] == ["d1"]
    assert names(store.root) == ["d1"]


def damage_truncated(path: Path) -> None:
    cubin = path / "kernel.cubin"
    cubin.write_bytes(cubin.read_bytes()[:100])


def damage_changed(path: Path) -> None:
    cubin = path / "kernel.cubin"
    data = bytearray(cubin.read_bytes())
    data[1000] ^= 1
    cubin.write_bytes(data)


def damage_file_gone(path: Path) -> None:
    (path / "kernel.ptx").unlink()


def damage_meta_gone(path: Path) -> None:
    (path / META).unlink()


def damage_meta_truncated(path: Path) -> None:
    (path / META).write_text((path / META).read_text()[:20])


def damage_meta_other_json(path: Path) -> None:
    (path / META).write_text(json.dumps([1, 2]))


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncated,
        damage_changed,
        damage_file_gone,
        damage_meta_gone,
        damage_meta_truncated,
        damage_meta_other_json,
    ],
)
def test_a_damaged_object_is_not_found_and_is_replaced(tmp_path: Path, damage: object) -> None:
    store = Store(tmp_path)
    path = store.put("d1", FILES, {}).path
    assert callable(damage)
    damage(path)
    assert store.get("d1") is None
    assert list(store.objects()) == []
    store.put("d1", FILES, {})
    got = store.get("d1")
    assert got is not None
    assert got.read("kernel.cubin") == FILES["kernel.cubin"]
    assert names(tmp_path) == ["d1"]


def test_an_intact_object_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    inode = store.put("d1", FILES, {}).path.stat().st_ino
    store.put("d1", FILES, {})
    assert (tmp_path / "d1").stat().st_ino == inode


def test_discard(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("d1", FILES, {})
    store.discard("d1")
    assert store.get("d1") is None
    assert names(tmp_path) == []
    store.discard("d1")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(FileNotFoundError):
        store.put("d1", {"kernel.cubin": b"1", "no/such/folder": b"2"}, {})
    assert names(tmp_path) == []


def test_half_written_objects_are_no_objects(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.put("d1", FILES, {}).path
    path.rename(tmp_path / ".tmp-killed")  # what a process leaves that is killed before it renames
    assert store.get("d1") is None
    assert list(store.objects()) == []


def put_and_check(root: str, start: float) -> bool:
    store = Store(Path(root))
    time.sleep(max(0.0, start - time.time()))
    for _ in range(20):
        store.put("d1", FILES, {})
        got = store.get("d1")
        if got is None or got.read("kernel.cubin") != FILES["kernel.cubin"]:
            return False
    return True


def test_processes_that_race_leave_one_object(tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / META).write_text("damaged")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        start = time.time() + 0.5
        assert pool.starmap(put_and_check, [(str(tmp_path), start)] * 4) == [True] * 4
    assert names(tmp_path) == ["d1"]
