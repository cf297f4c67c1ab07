"""Names and plan records: reversible, unique, and changed by every field."""

from __future__ import annotations

import keyword
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa3gen.families import FAMILIES
from fa3gen.features import FEATURES, Feature, parse_features
from fa3gen.matrix import load
from fa3gen.model import (
    Arch,
    DType,
    Family,
    ForwardPlan,
    HeadDim,
    Layout,
    Location,
    Mask,
    Variant,
    parse_name,
)
from fa3gen.plan import resolve

SHIPPED = Path(__file__).parents[1] / "variants.yaml"
#: Names that begin with or contain one another, to try the grammar.
TRIAL_FEATURES = {name: Feature(families=("fwd",)) for name in ("split", "splitk", "pack_gqa", "gqa")}

dims = st.integers(1, 512)
variants = st.builds(
    Variant,
    family=st.sampled_from(Family),
    arch=st.sampled_from(Arch),
    dtype=st.sampled_from(DType),
    head_dim=st.one_of(dims.map(lambda d: HeadDim(d, d)), st.builds(HeadDim, dims, dims)),
    mask=st.sampled_from(Mask),
    layout=st.sampled_from(Layout),
    features=st.sets(st.sampled_from(sorted(TRIAL_FEATURES))).map(
        lambda chosen: tuple(name for name in TRIAL_FEATURES if name in chosen)
    ),
    origin=st.none(),
)


class Other(str, Enum):
    """A value that no axis has."""

    VALUE = "other"


def _changed(value: Any) -> list[Any]:
    """Values other than ``value`` that a field of its type may take."""
    if isinstance(value, Enum):
        return [Other.VALUE, *(item for item in type(value) if item is not value)]
    if isinstance(value, HeadDim):
        return [replace(value, qk=value.qk + 8), replace(value, v=value.v + 8)]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, -value]
    if isinstance(value, tuple):
        return [(*value, "other")]
    raise AssertionError(f"say how a {type(value).__name__} changes")


def _shipped() -> tuple[Variant, ...]:
    return load(SHIPPED).variants


def test_names_of_the_matrix() -> None:
    names = [variant.name for variant in _shipped()]
    assert [parse_name(name) for name in names] == list(_shipped())
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in names)


@given(variants)
def test_parse_reverses_name(variant: Variant) -> None:
    with patch.dict(FEATURES, TRIAL_FEATURES):
        assert parse_name(variant.name) == variant


@given(variants)
def test_name_is_a_c_identifier(variant: Variant) -> None:
    assert variant.name.isidentifier()
    assert variant.name.isascii()


@given(variants, variants)
def test_names_are_unique(one: Variant, other: Variant) -> None:
    assert (one.name == other.name) == (one == other)


@given(variants)
def test_origin_is_no_part_of_a_variant(variant: Variant) -> None:
    assert replace(variant, origin=Location("a.yaml", 3, 1)) == variant


@pytest.mark.parametrize(
    "name",
    [
        "",
        "fwd",
        "fwd_bf16_d128_causal",
        "fwd_bf16_d128_causal_sm90a_0",
        "fwd_bf16_d128_causal_dense_sm90a",
        "fwd_bf16_d128x128_causal_sm90a",
        "fwd_bf16_d0128_causal_sm90a",
        "fwd_bf16_d128x_causal_sm90a",
        "fwd_bf16_d\uff11\uff12\uff18_causal_sm90a",
        "fwd_e4m3_d128_causal_sm90a",
        "fwd_bf16_d128_causal_split_sm90a",
        "FWD_bf16_d128_causal_sm90a",
        " fwd_bf16_d128_causal_sm90a",
        "fwd_bf16_d128_causal_sm90a\n",
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not|equal dims"):
        parse_name(name)


@pytest.mark.parametrize("field", [f.name for f in fields(Variant) if f.compare])
def test_every_field_of_a_variant_shows_in_its_name(field: str) -> None:
    for variant in _shipped():
        for value in _changed(getattr(variant, field)):
            assert replace(variant, **{field: value}).name != variant.name


@pytest.mark.parametrize("field", [f.name for f in fields(ForwardPlan) if f.name != "variant"])
def test_every_field_of_a_plan_shows_in_its_record(field: str) -> None:
    for variant in _shipped():
        plan = resolve(variant)
        for value in _changed(getattr(plan, field)):
            assert replace(plan, **{field: value}).to_json() != plan.to_json()


def test_plan_bears_the_variant_s_name() -> None:
    assert [resolve(variant).name for variant in _shipped()] == [variant.name for variant in _shipped()]


def test_features_are_put_in_registry_order() -> None:
    with patch.dict(FEATURES, TRIAL_FEATURES):
        assert parse_features("gqa+split") == ("split", "gqa")
        with pytest.raises(ValueError, match=r"the feature 'split' is repeated in 'split\+split'"):
            parse_features("split+split")
    assert parse_features("plain") == ()


def test_family_modules_bear_the_family_s_name() -> None:
    assert {f"fa3gen.families.{family.value}" for family in Family} == {m.__name__ for m in FAMILIES.values()}  # type: ignore[attr-defined]
