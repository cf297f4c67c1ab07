"""Bundles: found, checked, loaded, chosen."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fa3 import contract
from fa3.choice import choose
from fa3.contract import BOUNDS, Extents
from fa3.runtime import BundleError, DeviceError, bundle, launcher, load_bundle
from fa3.runtime.bundle import Choice, ReadyKernel, default_bundle, named_bundle
from fa3.runtime.launcher import NativeLauncher
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime_bundle import ARCH, KEYS, FakeLauncher, plans, write_bundle


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    fake = FakeLauncher()
    monkeypatch.setattr(launcher, "native", lambda: fake)
    monkeypatch.setattr(bundle, "_bundles", {})
    monkeypatch.setattr(bundle, "_default", None)
    monkeypatch.delenv("FA3_BUNDLE", raising=False)
    return fake


def rewrite(folder: Path, **changes: Any) -> None:
    """Changes the first kernel in the manifest."""
    file = folder / contract.MANIFEST
    document = json.loads(file.read_text())
    document["kernels"][0].update(changes)
    file.write_text(json.dumps(document))


def test_load(tmp_path: Path, native: FakeLauncher) -> None:
    manifest = write_bundle(tmp_path)
    loaded = load_bundle(tmp_path)
    assert loaded.manifest == manifest
    assert [plan.key for key in KEYS for plan in loaded.find(key)] == list(KEYS)
    assert native.bundles == [str(tmp_path)]
    assert native.loads == []  # no kernel before it is needed
    assert repr(loaded) == f"<fa3 bundle {tmp_path}: {len(KEYS)} kernels for {ARCH}>"


def test_relative_and_string_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert load_bundle("b").path == tmp_path / "b"
    assert load_bundle(Path("b")) is load_bundle(str(tmp_path / "b") + "/")


def test_loading_again_gives_the_same_bundle_until_it_was_rebuilt(tmp_path: Path, native: FakeLauncher) -> None:
    write_bundle(tmp_path)
    first = load_bundle(tmp_path)
    assert load_bundle(tmp_path) is first
    write_bundle(tmp_path, KEYS[:2])
    second = load_bundle(tmp_path)
    assert second is not first
    assert len(second.kernels) == 2
    assert named_bundle(str(tmp_path)) is second
    assert len(native.bundles) == 2


def test_default_is_the_last_one_loaded(tmp_path: Path) -> None:
    for name in "abc":
        write_bundle(tmp_path / name)
    first = load_bundle(tmp_path / "a")
    assert default_bundle() is first
    second = load_bundle(tmp_path / "b")
    load_bundle(tmp_path / "c", default=False)
    assert default_bundle() is second
    assert load_bundle(tmp_path / "a") is first
    assert default_bundle() is first


def test_environment_names_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle(tmp_path / "a")
    write_bundle(tmp_path / "b")
    monkeypatch.setenv("FA3_BUNDLE", str(tmp_path / "a"))
    assert default_bundle().path == tmp_path / "a"
    assert named_bundle("") is default_bundle()
    assert load_bundle(tmp_path / "b") is default_bundle()


@pytest.mark.parametrize("value", [None, ""])
def test_no_default(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("FA3_BUNDLE", value)
    with pytest.raises(BundleError, match=r"load_bundle\(path\) once.*FA3_BUNDLE.*bundle="):
        default_bundle()


def test_environment_names_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA3_BUNDLE", str(tmp_path))
    with pytest.raises(BundleError, match=rf"{tmp_path} holds no bundle: manifest.json: No such file"):
        default_bundle()


def test_damaged_json(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    (tmp_path / contract.MANIFEST).write_text("{")
    with pytest.raises(BundleError, match=r"manifest\.json is damaged"):
        load_bundle(tmp_path)
    (tmp_path / contract.MANIFEST).write_bytes(b"\xff")
    with pytest.raises(BundleError, match=r"manifest\.json is damaged"):
        load_bundle(tmp_path)


def test_another_schema(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    (tmp_path / contract.MANIFEST).write_text('{"schema": 99}')
    with pytest.raises(BundleError, match="has schema 99, this fa3-runtime reads schema"):
        load_bundle(tmp_path)


def test_cubin_of_another_build(tmp_path: Path, native: FakeLauncher) -> None:
    manifest = write_bundle(tmp_path)
    (tmp_path / manifest.kernels[3].cubin).write_bytes(b"other")
    with pytest.raises(BundleError, match=rf"{manifest.kernels[3].name}.*sha256 differs"):
        load_bundle(tmp_path)
    assert native.bundles == []


@pytest.mark.parametrize("name", ["index.txt", f"cubins/fwd_bf16_d64_causal_{ARCH}.cubin"])
def test_missing_file(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(BundleError, match=f"incomplete: {tmp_path / name}: No such file"):
        load_bundle(tmp_path)


def test_index_of_another_build(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    (tmp_path / contract.INDEX).write_text(contract.index_text(manifest).replace("threads 384", "threads 256", 1))
    with pytest.raises(BundleError, match=r"index\.txt does not belong to manifest\.json"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("changes", [{"tensors": ["q", "k", "v", "out"]}, {"scalars": []}])
def test_kernel_with_other_arguments(tmp_path: Path, changes: dict[str, Any]) -> None:
    manifest = write_bundle(tmp_path)
    rewrite(tmp_path, **changes)
    with pytest.raises(BundleError, match=f"kernel {manifest.kernels[0].name} takes q.*install the runtime"):
        load_bundle(tmp_path)


def test_failed_load_leaves_the_default(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a")
    first = load_bundle(tmp_path / "a")
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "b")
    assert default_bundle() is first


def test_kernels_are_loaded_once_for_all_threads(tmp_path: Path, native: FakeLauncher) -> None:
    write_bundle(tmp_path)
    loaded = load_bundle(tmp_path)
    (entry,) = loaded.find(KEYS[0])
    kernels = []
    threads = [threading.Thread(target=lambda: kernels.append(loaded.load(entry, -1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernels) == 8
    assert all(kernel is kernels[0] for kernel in kernels)
    assert native.loads == [(entry.name, -1)]
    assert kernels[0].softmax_scale == 0.125
    assert kernels[0].num_sms == FakeLauncher.NUM_SMS


def test_warm(tmp_path: Path, native: FakeLauncher) -> None:
    write_bundle(tmp_path)
    loaded = load_bundle(tmp_path)
    loaded.warm("cpu")
    assert sorted(native.loads) == sorted((entry.name, -1) for entry in loaded.entries)
    loaded.warm(torch.device("cpu"))
    assert len(native.loads) == len(KEYS)
    with pytest.raises(ValueError, match="device is on device meta"):
        loaded.warm("meta")


FURTHER = (("__n64", {"max_seqlen_k": 2047}), ("__n96", {"min_batch": 4}))


def test_warm_loads_every_plan(tmp_path: Path, native: FakeLauncher) -> None:
    manifest = write_bundle(tmp_path, KEYS[:2], FURTHER)
    loaded = load_bundle(tmp_path)
    loaded.warm("cpu")
    assert sorted(name for name, _ in native.loads) == [entry.name for entry in manifest.kernels]
    assert len(native.loads) == 6
    assert repr(loaded) == f"<fa3 bundle {tmp_path}: 6 kernels for {ARCH}>"


def test_a_bundle_without_a_general_plan_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path, KEYS[:1], FURTHER[:1])
    rewrite(tmp_path, when={"max_batch": 3})  # the first by name is the general plan
    with pytest.raises(BundleError, match="no kernel serves other calls"):
        load_bundle(tmp_path)


def test_only_some_plans(tmp_path: Path, native: FakeLauncher) -> None:
    names = [entry.name for entry in write_bundle(tmp_path, KEYS[:2], FURTHER).kernels]
    loaded = load_bundle(tmp_path)
    one = loaded.only(names[1], names[3])
    assert [(entry.name, entry.when) for entry in one.entries] == [(names[1], None), (names[3], None)]
    one.warm("cpu")
    loaded.warm("cpu")
    assert len(native.loads) == 6  # what is loaded is shared
    assert len(native.bundles) == 1
    assert len(loaded.entries) == 6
    assert named_bundle(one.name) is one
    assert named_bundle(str(tmp_path)) is loaded
    assert one.name in repr(one)
    with pytest.raises(KeyError):
        loaded.only("none")
    with pytest.raises(BundleError, match="answer the same calls"):
        loaded.only(names[0], names[0])


@given(st.lists(st.dictionaries(st.sampled_from(BOUNDS), st.integers(0, 5)), max_size=4), st.data())
def test_the_choice_of_a_call_is_that_of_the_manifest(bounds: list[dict[str, int]], data: st.DataObject) -> None:
    fitting = [
        when for when in bounds if all(when.get(f"min_{e}", 0) <= when.get(f"max_{e}", 9) for e in Extents._fields)
    ]
    entries = plans(KEYS[0], [(f"__n{i}", when) for i, when in enumerate(fitting)])
    ready = [ReadyKernel(entry.name, print, 1.0, 1) for entry in entries]
    choice = Choice([*zip([entry.when for entry in entries], ready, strict=True)])
    call = Extents(*data.draw(st.tuples(*[st.integers(0, 7)] * 5)))
    q = torch.Size((call.batch, call.seqlen_q, call.heads_q, 64))
    v = torch.Size((call.batch, call.seqlen_k, call.heads_k, 64))
    assert choice.kernel(q, v).name == choose(entries, call).name


@pytest.mark.parametrize("device", [None, "cuda", torch.device("cuda"), 2, "cuda:2"])
def test_warm_takes_the_current_device_for_granted(
    tmp_path: Path, native: FakeLauncher, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(native, "device", bare_launcher().device)
    monkeypatch.setattr(native, "check_arch", lambda device, arch: None)
    write_bundle(tmp_path, KEYS[:1])
    load_bundle(tmp_path).warm(device)
    assert [device for _, device in native.loads] == [2]


def test_nothing_is_written(tmp_path: Path) -> None:
    """Report X4: a bundle on a read-only medium will do."""
    write_bundle(tmp_path)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    load_bundle(tmp_path).warm("cpu")
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


# the native launcher's Python side


def bare_launcher() -> NativeLauncher:
    """Without its library: for what needs none."""
    return NativeLauncher.__new__(NativeLauncher)


def test_missing_library(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"launcher {tmp_path}.*is missing: install the fa3-runtime wheel"):
        NativeLauncher(tmp_path / "libfa3_tvm_ffi.so")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_devices_without_cuda_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match=rf"^k is on device {device}; allowed: CUDA devices"):
        bare_launcher().device("k", torch.device(device))


def test_device_index() -> None:
    assert bare_launcher().device("q", torch.device("cuda", 3)) == 3


def test_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", {0: (9, 0), 1: (10, 0)}.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    native = bare_launcher()
    native.check_arch(0, "sm90a")
    with pytest.raises(DeviceError, match=r"cuda:1 is NVIDIA B200 of compute capability 10\.0.*\(sm90a\) need 9\.0"):
        native.check_arch(1, "sm90a")
    with pytest.raises(DeviceError, match="the bundle is for sm100a; this fa3-runtime serves sm90a"):
        native.check_arch(0, "sm100a")
