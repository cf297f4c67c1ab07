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
from fa3gen.model import ForwardPlan, suffix
from tests.built_kernels import REPO, built, plan_of, plans, report

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
    assert written.kernels == len(plans())
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


def further(changes: dict[str, Any], when: dict[str, int], priority: int = 0) -> ForwardPlan:
    """A further plan of the first kernel's variant."""
    general = plan_of()
    plan = replace(general, **changes)
    bounds = contract.Bounds.of(when)
    return replace(plan, when=bounds, priority=priority, suffix=suffix(plan, general))


SMALL = further({"tile_n": 64}, {"max_seqlen_k": 2047})
WIDE = further({"stages": 2}, {"max_seqlen_k": 4095, "min_batch": 2}, 1)
GENERAL = replace(plan_of(), priority=2)


def test_several_plans_of_a_variant(tmp_path: Path) -> None:
    kernels = [fake(plan) for plan in (GENERAL, WIDE, SMALL, plan_of("fwd_bf16_d64_causal_sm90a"))]
    written = write(tmp_path / "b", kernels)
    manifest = contract.manifest_from_json(json.loads((written.path / "manifest.json").read_text()))
    assert manifest == bundle.make_manifest(kernels[::-1], TOOLCHAIN)
    by_name = {entry.name: entry for entry in manifest.kernels}
    assert [*by_name] == [
        "fwd_bf16_d64_causal_sm90a",
        "fwd_bf16_d64_full_sm90a",
        "fwd_bf16_d64_full_sm90a__n64",
        "fwd_bf16_d64_full_sm90a__s2",
    ]
    for plan in (GENERAL, WIDE, SMALL):
        entry = by_name[plan.name]
        assert (entry.when, entry.priority) == (plan.when, plan.priority)
        assert (entry.symbol, entry.cubin) == (f"{plan.name}_0", f"cubins/{plan.name}.cubin")
        assert (written.path / entry.cubin).read_bytes() == f"cubin of {plan.name}".encode()
        assert entry.plan["tile_n"] == plan.tile_n
        assert "when" not in entry.plan
    order = contract.plans_by_key(manifest.kernels)[by_name[SMALL.name].key]
    assert [entry.name for entry in order] == [SMALL.name, WIDE.name, GENERAL.name]


def test_bounds_change_the_manifest_alone(tmp_path: Path) -> None:
    moved = replace(SMALL, when=contract.Bounds.of({"max_seqlen_k": 511}))
    before = files(write(tmp_path / "a", [fake(SMALL), fake(GENERAL)]).path)
    after = files(write(tmp_path / "b", [fake(moved), fake(GENERAL)]).path)
    assert [name for name in before if before[name] != after[name]] == ["manifest.json"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([SMALL], "kernel fwd_bf16_d64_full_sm90a__n64 serves seqlen_k <= 2047, and no kernel serves other calls"),
        ([SMALL, replace(WIDE, priority=0), GENERAL], "answer the same calls"),
        ([SMALL, replace(GENERAL, priority=0)], "answer the same calls"),
        ([WIDE, replace(SMALL, priority=5), GENERAL], "fwd_bf16_d64_full_sm90a and .* answer the same calls"),
        ([SMALL, further({"stages": 2}, {"max_seqlen_k": 99}, 1), GENERAL], "__s2 is never reached"),
        ([SMALL, further({"stages": 2}, {"min_seqlen_k": 99}, 1), GENERAL], "fwd_bf16_d64_full_sm90a is never reached"),
    ],
)
def test_plans_that_make_no_dispatch_are_refused(chosen: list[ForwardPlan], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        bundle.make_manifest([fake(plan) for plan in chosen], TOOLCHAIN)


def test_a_bundle_of_nothing_is_refused() -> None:
    with pytest.raises(BundleError, match="of one architecture, not of none"):
        bundle.make_manifest([], TOOLCHAIN)


def test_each_variant_has_a_key_of_its_own() -> None:
    variants = {plan.variant for plan in plans()}
    assert len({bundle.dispatch_key(variant) for variant in variants}) == len(variants)


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
