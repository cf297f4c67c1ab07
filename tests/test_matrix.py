"""Laws of the expansion, counts of the shipped file, and selections."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fa3gen.errors import SelectionError
from fa3gen.families import FAMILIES, fwd, unsupported
from fa3gen.features import FEATURES, Feature
from fa3gen.matrix import Matrix, load, select
from fa3gen.model import Arch, HeadDim, Location

SHIPPED = Path(__file__).parents[1] / "variants.yaml"
AXES = {"dtype": ["bf16", "fp16"], "head_dim": ["64", "128", "256", "80", "256x64"], "mask": ["full", "causal"]}
SUPPORTED = {**AXES, "head_dim": ["64", "128", "256"]}

Cells = dict[str, list[str]]


def _expand(fwd: dict[str, Any], presets: dict[str, Any] | None = None) -> Matrix:
    document = {"schema": 1, "toolchain": "cu12", "families": {"fwd": fwd}}
    if presets:
        document["presets"] = presets
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variants.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return load(path)


def _subset(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, unique=True)


def _grids(axes: Cells) -> st.SearchStrategy[Cells]:
    """Every axis with some of its values, in any order of axes and values."""
    filled = st.fixed_dictionaries({axis: _subset(values) for axis, values in axes.items()})
    return filled.flatmap(lambda grid: st.permutations(list(grid.items())).map(dict))


@st.composite
def _within(draw: st.DrawFn, grid: Cells) -> Cells:
    """A partial match that at least one cell of ``grid`` satisfies."""
    axes = draw(st.lists(st.sampled_from(sorted(grid)), min_size=1, unique=True))
    return {axis: draw(_subset(grid[axis])) for axis in axes}


def _names(grid: Cells, matches: list[Cells]) -> set[str]:
    """Names of the cells of ``grid`` that one of ``matches`` fits, computed without the product code."""
    cells = [dict(zip(grid, combination, strict=True)) for combination in product(*grid.values())]
    return {
        f"fwd_{cell['dtype']}_d{cell['head_dim']}_{cell['mask']}_sm90a"
        for cell in cells
        if any(all(cell[axis] in values for axis, values in match.items()) for match in matches)
    }


@given(_grids(SUPPORTED))
@settings(deadline=None)
def test_axes_give_their_product_once_and_sorted(grid: Cells) -> None:
    matrix = _expand({"axes": grid})
    assert set(matrix.names) == _names(grid, [{}])
    assert len(matrix.names) == len(grid["dtype"]) * len(grid["head_dim"]) * len(grid["mask"])
    assert list(matrix.names) == sorted(matrix.names)


@given(_grids(AXES))
@settings(deadline=None)
def test_skipped_and_kept_make_up_the_product(grid: Cells) -> None:
    grid["head_dim"] = sorted({*grid["head_dim"], "64"})  # something must be left
    matrix = _expand({"axes": grid, "on_unsupported": "skip"})
    skipped = {variant.name for variant, _ in matrix.skipped}
    assert skipped == _names(grid, [{"head_dim": ["80", "256x64"]}])
    assert skipped | set(matrix.names) == _names(grid, [{}])
    assert skipped.isdisjoint(matrix.names)
    assert all("head_dim" in reason for _, reason in matrix.skipped)


@given(st.data(), _grids(SUPPORTED))
@settings(deadline=None)
def test_excludes_take_out_what_they_match(data: st.DataObject, grid: Cells) -> None:
    matches = data.draw(st.lists(_within(grid), min_size=1, max_size=3))
    left = _names(grid, [{}]) - _names(grid, matches)
    extra = {"dtype": "bf16", "head_dim": 64, "mask": "full"}
    name = "fwd_bf16_d64_full_sm90a"
    fwd: dict[str, Any] = {"axes": grid, "exclude": [match | {"reason": "a test"} for match in matches]}
    if name not in left:  # a cell that was excluded, or never was there, may be included
        fwd["include"] = extra
    matrix = _expand(fwd)
    assert set(matrix.names) == left | {name}
    assert {variant.name for variant, _ in matrix.excluded} == _names(grid, matches) - {name}


@given(st.data(), _grids(SUPPORTED))
@settings(deadline=None)
def test_order_changes_nothing(data: st.DataObject, grid: Cells) -> None:
    excluded = data.draw(st.lists(_within(grid), max_size=2))
    left = _names(grid, [{}]) - _names(grid, excluded)
    fwd: dict[str, Any] = {"axes": grid}
    if excluded and left:
        fwd["exclude"] = [match | {"reason": "a test"} for match in excluded]
    shuffled = dict(data.draw(st.permutations(list(fwd.items()))))
    shuffled["axes"] = {
        axis: data.draw(st.permutations(values)) for axis, values in data.draw(st.permutations(list(grid.items())))
    }
    if "exclude" in fwd:
        shuffled["exclude"] = data.draw(st.permutations(fwd["exclude"]))
    one, other = _expand(fwd), _expand(shuffled)
    assert one.variants == other.variants
    assert {variant.name for variant, _ in one.excluded} == {variant.name for variant, _ in other.excluded}


@given(st.data(), _grids(SUPPORTED))
@settings(deadline=None)
def test_presets_select_what_they_match(data: st.DataObject, grid: Cells) -> None:
    matches = data.draw(st.lists(_within(grid), min_size=1, max_size=3))
    matrix = _expand({"axes": grid}, {"some": matches, "all": {"family": "fwd"}})
    assert set(matrix.presets["some"]) == _names(grid, matches)
    assert matrix.presets["all"] == matrix.names
    assert tuple(variant.name for variant in select(matrix, preset="some")) == matrix.presets["some"]


def test_a_scalar_is_a_list_of_one() -> None:
    scalars = _expand({"axes": {"dtype": "bf16", "head_dim": 64, "mask": "full"}})
    lists = _expand({"axes": {"dtype": ["bf16"], "head_dim": [64], "mask": ["full"]}})
    assert scalars.names == lists.names == ("fwd_bf16_d64_full_sm90a",)


def test_defaults_fan_out_and_give_way() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variants.yaml"
        path.write_text(
            "schema: 1\ntoolchain: cu12\ndefaults: {dtype: [bf16, fp16], mask: causal}\nfamilies:\n"
            "  fwd: {axes: {head_dim: 64, mask: full}, include: {head_dim: 128, dtype: bf16}}\n"
        )
        names = load(path).names
    assert names == ("fwd_bf16_d128_causal_sm90a", "fwd_bf16_d64_full_sm90a", "fwd_fp16_d64_full_sm90a")


def test_unsupported_features_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "split", Feature(families=("decode",)))
    monkeypatch.setitem(FEATURES, "sink", Feature(families=("fwd",), conflicts=("softcap",)))
    monkeypatch.setitem(FEATURES, "softcap", Feature(families=("fwd",)))
    axes = {"dtype": "bf16", "head_dim": 64, "mask": "full", "features": ["plain", "split", "softcap+sink", "sink"]}
    matrix = _expand({"axes": axes, "on_unsupported": "skip"})
    assert {variant.features: reason for variant, reason in matrix.skipped} == {
        ("split",): "feature split belongs to decode, not to fwd",
        ("sink", "softcap"): "feature sink excludes softcap",
        ("sink",): "features sink: fwd has plain",
    }


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_support_the_variants_they_list(family: Any, arch: Arch) -> None:
    listed = list(FAMILIES[family].variants(arch))
    assert listed
    assert len(set(listed)) == len(listed)
    assert [unsupported(variant) for variant in listed] == [None] * len(listed)


def test_shipped_file() -> None:
    matrix = load(SHIPPED)
    assert matrix.toolchain == "cu12"
    assert len(matrix.variants) == 20
    dims = {"bf16": fwd.SUPPORTED["head_dim"], "fp16": tuple(HeadDim(dim, dim) for dim in (64, 128, 256))}
    for dtype, expected in dims.items():
        found = {variant.head_dim for variant in matrix.variants if variant.dtype.value == dtype}
        assert found == set(expected)
    assert {name: len(names) for name, names in matrix.presets.items()} == {"ci": 2, "llama3": 1, "witness": 3}
    assert not matrix.skipped
    assert len(matrix.excluded) == 8
    text = SHIPPED.read_text().splitlines()
    for variant in matrix.variants:
        assert isinstance(variant.origin, Location)
        assert text[variant.origin.line - 1].lstrip().startswith("axes:")


def test_select() -> None:
    matrix = load(SHIPPED)
    assert select(matrix) == matrix.variants
    assert [v.name for v in select(matrix, ["fwd_fp16_d64_full_sm90a", "*_bf16_d64_*"])] == [
        "fwd_bf16_d64_causal_sm90a",
        "fwd_bf16_d64_full_sm90a",
        "fwd_fp16_d64_full_sm90a",
    ]
    both = select(matrix, ["fwd_fp16_d64_full_sm90a"], preset="ci")
    assert [v.name for v in both] == [*matrix.presets["ci"], "fwd_fp16_d64_full_sm90a"]


def test_select_reports_every_wrong_selector() -> None:
    with pytest.raises(SelectionError) as caught:
        select(load(SHIPPED), ["fwd_fp16_d64_full_sm90a", "bwd_*", "combine"], preset="none")
    assert [d.code for d in caught.value.diagnostics] == ["S001", "S001", "S002"]
