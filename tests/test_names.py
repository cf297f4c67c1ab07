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
    PLAN_FIELDS,
    SPELLINGS,
    Arch,
    DType,
    Family,
    ForwardPlan,
    HeadDim,
    Layout,
    Location,
    Mask,
    Scheduler,
    Softmax,
    Variant,
    parse_name,
    parse_suffix,
    suffix,
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


@pytest.mark.parametrize("field", [*PLAN_FIELDS, "reasons"])
def test_every_field_of_a_plan_shows_in_its_record(field: str) -> None:
    for variant in _shipped():
        plan = resolve(variant)
        for value in _changed(getattr(plan, field)):
            assert replace(plan, **{field: value}).to_json() != plan.to_json()


def test_plan_bears_the_variant_s_name() -> None:
    assert [resolve(variant).name for variant in _shipped()] == [variant.name for variant in _shipped()]


# --- names of further plans


def _candidates(general: ForwardPlan) -> st.SearchStrategy[ForwardPlan]:
    """Plans that differ from ``general`` in any fields, legal or not."""
    values: dict[str, st.SearchStrategy[Any]] = {
        name: st.sampled_from([*kind]) if issubclass(kind, Enum) else st.booleans() if kind is bool else st.integers(0)
        for name, kind in PLAN_FIELDS.items()
    }
    return st.fixed_dictionaries({}, optional=values).map(lambda changes: replace(general, **changes))


GENERAL = resolve(parse_name("fwd_bf16_d64_full_sm90a"), {"softmax": "lazy", "pin_pv_wait": "true"})
candidates = _candidates(GENERAL)


def test_every_field_of_a_plan_has_a_spelling() -> None:
    assert [*SPELLINGS] == [*PLAN_FIELDS], "say in SPELLINGS how names spell the new field"
    for name, kind in PLAN_FIELDS.items():
        assert isinstance(SPELLINGS[name], tuple) == (kind is bool)


@given(candidates)
def test_a_plan_s_name_gives_its_variant_and_its_fields_back(plan: ForwardPlan) -> None:
    named = replace(plan, suffix=suffix(plan, GENERAL))
    assert parse_name(named.name) == GENERAL.variant
    assert named.name.isidentifier()
    assert named.name.isascii()
    changes = parse_suffix(named.suffix) if named.suffix else {}
    assert replace(GENERAL, **changes) == plan
    assert all(getattr(GENERAL, name) != value for name, value in changes.items())


@given(candidates, candidates)
def test_plans_of_a_variant_have_names_of_their_own(one: ForwardPlan, other: ForwardPlan) -> None:
    assert (suffix(one, GENERAL) == suffix(other, GENERAL)) == (one == other)


@pytest.mark.parametrize("field", PLAN_FIELDS)
def test_every_field_of_a_plan_shows_in_the_name_of_a_further_one(field: str) -> None:
    for value in _changed(getattr(GENERAL, field)):
        assert suffix(replace(GENERAL, **{field: value}), GENERAL)


def test_spelling_of_further_plans() -> None:
    changes: dict[str, Any] = {"tile_m": 256, "tile_n": 64, "stages": 4}
    assert suffix(replace(GENERAL, **changes), GENERAL) == "__m256n64s4"
    changes |= {"q_stages": 1, "producer_regs": 24, "consumer_regs": 112, "softmax": Softmax.EXACT}
    assert suffix(replace(GENERAL, **changes), GENERAL) == "__m256n64s4_q1_pr24_cr112_exact"
    assert suffix(replace(GENERAL, scheduler=Scheduler.STATIC, pin_pv_wait=False), GENERAL) == "__static_nopin"
    assert suffix(GENERAL, GENERAL) == ""


@pytest.mark.parametrize(
    "end", ["__", "__m", "__m064", "__n64m256", "___q1", "__m256_n64", "__q1m256", "__x3", "__m256__n64", "__m256_0"]
)
def test_what_ends_no_name(end: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_name(f"fwd_bf16_d64_full_sm90a{end}")


def test_features_are_put_in_registry_order() -> None:
    with patch.dict(FEATURES, TRIAL_FEATURES):
        assert parse_features("gqa+split") == ("split", "gqa")
        with pytest.raises(ValueError, match=r"the feature 'split' is repeated in 'split\+split'"):
            parse_features("split+split")
    assert parse_features("plain") == ()


def test_family_modules_bear_the_family_s_name() -> None:
    assert {f"fa3gen.families.{family.value}" for family in Family} == {m.__name__ for m in FAMILIES.values()}  # type: ignore[attr-defined]
