"""Bundles: manifest and index say the same, equal kernels give equal bytes, and nothing else is ever removed."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fa3 import contract

from fa3gen import bundle
from fa3gen.bundle import BuiltKernel, BundleError
from fa3gen.compile import Resources
from fa3gen.digest import sha256
from fa3gen.errors import UsageError
from fa3gen.model import ForwardPlan
from tests.built_kernels import REPO, built, plans, report

TOOLCHAIN = {"toolchain": "cu12", "cuda": "12.9", "nvidia-cutlass-dsl": "4.8.1"}
RESOURCES = Resources(168, 384, 196784, 0, 0, 49280, ("C7519",))


def fake(plan: ForwardPlan) -> BuiltKernel:
    """A kernel whose cubin is no cubin: bundles do not look inside."""
    return BuiltKernel(plan, f"cubin of {plan.name}".encode(), RESOURCES)


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def write(path: Path, kernels: list[BuiltKernel], evidence: Any = None) -> bundle.WrittenBundle:
    return bundle.write(path, kernels, bundle.make_manifest(kernels, TOOLCHAIN, evidence))


def test_the_manifest_says_everything(tmp_path: Path) -> None:
    kernels = [fake(plan) for plan in plans()]
    written = write(tmp_path / "b", kernels)
    assert written.changed
    assert written.kernels == 12
    content = files(written.path)
    assert written.size == sum(map(len, content.values()))
    manifest = contract.manifest_from_json(json.loads(content["manifest.json"]))
    assert manifest == bundle.make_manifest(kernels, TOOLCHAIN)
    assert manifest.arch == "sm90a"
    assert manifest.toolchain == TOOLCHAIN
    assert [entry.name for entry in manifest.kernels] == sorted(plan.name for plan in plans())
    assert content["index.txt"].decode() == contract.index_text(manifest)
    assert set(content) == {"manifest.json", "index.txt", *(entry.cubin for entry in manifest.kernels)}
    for entry in manifest.kernels:
        cubin = content[entry.cubin]
        assert (entry.cubin_sha256, entry.cubin_bytes) == (sha256(cubin), len(cubin))
        assert cubin.decode() == f"cubin of {entry.name}"
        assert entry.symbol == f"{entry.name}_0"
        assert entry.resources["registers"] == 168
        assert entry.plan["tile_m"] == entry.launch.tile_m
        assert entry.plan["reasons"]
        assert entry.verified is None
    key = manifest.kernels[0].key
    assert key == contract.Key("fwd", "bf16", "128", "causal", "dense", ())


def test_the_order_of_kernels_does_not_matter(tmp_path: Path) -> None:
    kernels = [fake(plan) for plan in plans()]
    write(tmp_path / "a", kernels)
    write(tmp_path / "b", kernels[::-1])
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_bundle_is_replaced_whole_and_only_where_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "out" / "bundle"
    first, second = fake(plans()[0]), fake(plans()[1])
    assert write(path, [first, second]).changed
    before = path.stat().st_ino
    assert not write(path, [second, first]).changed
    assert path.stat().st_ino == before
    (path / "stray").write_text("left over")
    assert write(path, [first, second]).changed
    assert "stray" not in files(path)
    assert write(path, [second]).changed
    assert [name for name in files(path) if name.endswith(".cubin")] == [f"cubins/{second.plan.name}.cubin"]
    assert [p.name for p in path.parent.iterdir()] == ["bundle"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    with pytest.raises(UsageError, match="holds files and is no bundle"):
        write(tmp_path, [fake(plans()[0])])
    assert files(tmp_path) == {"precious": b"keep"}
    with pytest.raises(UsageError, match="is a file"):
        write(tmp_path / "precious", [fake(plans()[0])])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert write(empty, [fake(plans()[0])]).changed


def test_a_failed_write_leaves_the_bundle_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bundle"
    write(path, [fake(plans()[0])])
    before = files(path)

    def full(_self: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, [fake(plans()[1])])
    assert files(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_two_kernels_for_one_call_are_refused() -> None:
    plan = plans()[0]
    other = replace(plan, variant=replace(plan.variant))
    with pytest.raises(BundleError, match=f"kernels given twice: {plan.name}"):
        bundle.make_manifest([fake(plan), fake(other)], TOOLCHAIN)


def test_kernels_that_answer_the_same_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = plans()[:2]
    monkeypatch.setattr(bundle, "dispatch_key", lambda _variant: contract.Key("fwd", "bf16", "64", "full", "dense"))
    with pytest.raises(BundleError, match=f"{first.name} and {second.name} answer the same calls"):
        bundle.make_manifest([fake(first), fake(second)], TOOLCHAIN)


def test_a_bundle_of_nothing_is_refused() -> None:
    with pytest.raises(BundleError, match="of one architecture, not of none"):
        bundle.make_manifest([], TOOLCHAIN)


def test_each_variant_has_a_key_of_its_own() -> None:
    assert len({bundle.dispatch_key(plan.variant) for plan in plans()}) == len(plans())


def test_evidence_counts_for_the_very_cubin_only() -> None:
    plan = plans()[0]
    kernel = fake(plan)
    row = {"cubin_sha256": sha256(kernel.cubin), "device": "NVIDIA H200", "date": "2026-12-01", "cases": ["x"]}
    (entry,) = bundle.make_manifest([kernel], TOOLCHAIN, {plan.name: row}).kernels
    assert entry.verified == {"device": "NVIDIA H200", "date": "2026-12-01"}
    for evidence in ({plan.name: row | {"cubin_sha256": "0" * 64}}, {"other": row}, {}):
        (entry,) = bundle.make_manifest([kernel], TOOLCHAIN, evidence).kernels
        assert entry.verified is None


def test_the_real_bundle_is_small_and_names_no_place() -> None:
    written = report().bundle
    assert written is not None
    content = files(written.path)
    assert written.size == sum(map(len, content.values())) < 2_000_000
    assert {name: content[f"cubins/{name}.cubin"] for name in built()} == {n: k.cubin for n, k in built().items()}
    places = [str(REPO), str(Path.home()), tempfile.gettempdir(), sys.prefix, "site-packages"]
    for name, data in content.items():
        assert [place for place in places if place.encode() in data] == [], name
