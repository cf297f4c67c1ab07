"""What the generator, the runtime and the launcher agree on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from fa3.contract import (
    BOUNDS,
    GRID_RULES,
    L2_SECTION_BYTES,
    SCHEMA,
    UNBOUNDED,
    Bounds,
    Extents,
    Key,
    Launch,
    Manifest,
    ManifestError,
    Param,
    ParamKind,
    Shapes,
    TensorMap,
    covered,
    derive,
    grid,
    index_text,
    manifest_from_json,
    manifest_to_json,
    plans_by_key,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime_bundle import KEYS, entry

PARAMS = (
    Param("tma_q", ParamKind.TENSORMAP, "tensor:q", TensorMap((3, 1, 2, 0), (64, 64, 1, 1), "bf16", 128)),
    Param("lse", ParamKind.POINTER, "tensor:lse"),
    Param("seqlen_q", ParamKind.I32, "extent:q:1"),
    Param("lse_stride_batch", ParamKind.I64, "stride:lse:0"),
    Param("softmax_scale_log2", ParamKind.F32, "derived:softmax_scale_log2"),
)
FULL = replace(
    entry(Key("fwd", "bf16", "192x128", "causal", "dense", ("split", "softcap")), b"cubin"),
    params=PARAMS,
    launch=Launch(384, 1000, "tile_per_cta", 128),
    plan={"tile_m": 128, "reasons": ["because"]},
    resources={"registers": 168},
    verified={"device": "H200"},
)
SMALL = replace(entry(KEYS[0]), name="small", when=Bounds.of({"max_seqlen_k": 2047, "min_batch": 2}))
MANIFEST = Manifest("sm90a", {"dsl": "4.8.1", "cuda": "12"}, (FULL, replace(entry(KEYS[0]), priority=1), SMALL))


def document() -> Any:
    return json.loads(json.dumps(manifest_to_json(MANIFEST)))


def test_manifest_survives_json() -> None:
    assert manifest_from_json(document()) == MANIFEST


def test_what_is_outside_of_bounds_is_named() -> None:
    bounds = Bounds.of({"max_seqlen_k": 2047, "min_batch": 2})
    assert bounds.misfit(Extents(2, 1, 2047, 1, 1)) == ""
    assert bounds.misfit(Extents(2, 1, 2048, 1, 1)) == "seqlen_k 2048 is above 2047"
    assert bounds.misfit(Extents(1, 1, 4096, 1, 1)) == "batch 1 is below 2, seqlen_k 4096 is above 2047"
    assert Bounds().misfit(Extents(0, 0, 0, 0, 0)) == ""


@pytest.mark.parametrize("schema", [SCHEMA + 1, SCHEMA - 1, str(SCHEMA), None])
def test_another_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ManifestError, match=f"schema {schema}, this fa3-runtime reads schema {SCHEMA}: rebuild"):
        manifest_from_json(document() | {"schema": schema})


@pytest.mark.parametrize("other", [[], {}, "text", 1, None])
def test_what_is_no_manifest(other: Any) -> None:
    with pytest.raises(ManifestError, match="holds no fa3gen manifest"):
        manifest_from_json(other)


def test_every_fact_of_a_kernel_is_required() -> None:
    for fact in document()["kernels"][0]:
        damaged = document()
        del damaged["kernels"][0][fact]
        with pytest.raises(ManifestError, match="is damaged"):
            manifest_from_json(damaged)


@pytest.mark.parametrize("path", [("key", "mask"), ("launch", "grid"), ("params", 0, "kind"), ("params", 0, "source")])
def test_inner_facts_are_required(path: tuple[Any, ...]) -> None:
    damaged = document()
    inner = damaged["kernels"][0]
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    with pytest.raises(ManifestError, match="is damaged"):
        manifest_from_json(damaged)


def test_unknown_parameter_kind_is_refused() -> None:
    damaged = document()
    damaged["kernels"][0]["params"][0]["kind"] = "f64"
    with pytest.raises(ManifestError, match=r"is damaged.*f64"):
        manifest_from_json(damaged)


def test_index() -> None:
    head, _, rest = index_text(Manifest("sm90a", {}, (FULL,))).partition("kernel ")
    assert head == f"fa3-index {SCHEMA}\narch sm90a\n"
    assert rest == (
        "fwd_bf16_d192x128_causal_split_softcap_sm90a\n"
        "key fwd bf16 192x128 causal dense split,softcap\n"
        "symbol fwd_bf16_d192x128_causal_split_softcap_sm90a_0\n"
        "cubin cubins/fwd_bf16_d192x128_causal_split_softcap_sm90a.cubin 5\n"
        "launch threads 384 smem 1000 grid tile_per_cta tile_m 128\n"
        "tensors q,k,v,out,lse\n"
        "optional lse\n"
        "scalars softmax_scale\n"
        "param tma_q tensormap tensor:q bf16 axes 3,1,2,0 box 64,64,1,1 swizzle 128\n"
        "param lse pointer tensor:lse\n"
        "param seqlen_q i32 extent:q:1\n"
        "param lse_stride_batch i64 stride:lse:0\n"
        "param softmax_scale_log2 f32 derived:softmax_scale_log2\n"
        "end\n"
    )


def test_index_spells_empty_lists() -> None:
    text = index_text(Manifest("sm90a", {}, (replace(FULL, optional=(), key=KEYS[0]),)))
    assert "\noptional -\n" in text
    assert "\nkey fwd bf16 64 full dense -\n" in text


def test_bounds_are_no_part_of_the_index() -> None:
    """libfa3 finds kernels by name."""
    manifest = Manifest("sm90a", {}, (SMALL,))
    assert index_text(manifest) == index_text(Manifest("sm90a", {}, (replace(SMALL, when=None, priority=3),)))


# --- bounds

extents = st.integers(0, 4)
sides = st.tuples(extents, st.one_of(extents, st.just(UNBOUNDED))).map(sorted)
boxes = st.tuples(sides, sides, sides).map(
    lambda s: Bounds(Extents(s[0][0], s[1][0], s[2][0], 0, 0), Extents(s[0][1], s[1][1], s[2][1], 9, 9))
)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, ""),
        ({"max_seqlen_k": 2047}, "seqlen_k <= 2047"),
        ({"min_seqlen_k": 1024, "max_seqlen_k": 4096, "max_batch": 1}, "batch <= 1, 1024 <= seqlen_k <= 4096"),
        ({"min_heads_q": 8, "max_heads_k": 0}, "8 <= heads_q, heads_k <= 0"),
    ],
)
def test_bounds_as_text_and_as_json(values: dict[str, int], text: str) -> None:
    bounds = Bounds.of(values)
    assert str(bounds) == text
    assert bounds.to_json() == values


@pytest.mark.parametrize(
    ("values", "message"),
    [({"max_tiles": 3}, "there is no bound 'max_tiles'"), ({"min_batch": 3, "max_batch": 2}, "min_batch 3 is above")],
)
def test_wrong_bounds(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bounds.of(values)
    damaged = document()
    damaged["kernels"][2]["when"] = values
    with pytest.raises(ManifestError, match="is damaged"):
        manifest_from_json(damaged)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_inclusive(name: str) -> None:
    end, _, extent = name.partition("_")
    at = Extents(7, 7, 7, 7, 7)
    bounds = Bounds.of({name: 7})
    assert bounds.fit(at)
    assert bounds.fit(at._replace(**{extent: 6})) == (end == "max")
    assert bounds.fit(at._replace(**{extent: 8})) == (end == "min")


@given(boxes, st.lists(boxes, max_size=4))
def test_covered_is_what_trying_every_call_says(bounds: Bounds, by: list[Bounds]) -> None:
    calls = [Extents._make((*call, 0, 0)) for call in product((0, 1, 2, 3, 4, 5, UNBOUNDED), repeat=3)]
    assert covered(bounds, by) == all(any(other.fit(call) for other in by) for call in calls if bounds.fit(call))


def test_plans_are_in_the_order_of_their_priority() -> None:
    general = replace(entry(KEYS[0]), priority=5)
    first, second = (replace(SMALL, name=name, priority=p) for name, p in (("z", 1), ("a", 3)))
    other = entry(KEYS[1])
    expected = {KEYS[0]: (first, second, general), KEYS[1]: (other,)}
    assert plans_by_key([general, second, other, first]) == expected


def test_plans_that_leave_a_call_without_a_kernel_or_with_two_are_refused() -> None:
    general = entry(KEYS[0])
    with pytest.raises(ManifestError, match=f"kernels {general.name} and small answer the same calls"):
        plans_by_key([general, SMALL])
    with pytest.raises(ManifestError, match=f"kernels {general.name} and small answer the same calls"):
        plans_by_key([general, replace(SMALL, priority=1)])
    with pytest.raises(ManifestError, match="kernel small serves 2 <= batch, seqlen_k <= 2047, and no kernel serves"):
        plans_by_key([SMALL])


SHAPES = Shapes(batch=3, seqlen_q=129, seqlen_k=1000, heads_q=12, heads_k=4, head_dim=128, head_dim_v=64, tile_m=128)


def test_derived_scalars() -> None:
    assert derive("softmax_scale_log2", SHAPES, 0.5) == pytest.approx(0.5 / math.log(2), rel=1e-15)
    assert derive("heads_per_kv", SHAPES) == 3
    assert derive("m_tiles", SHAPES) == 2
    assert derive("m_tiles", replace(SHAPES, seqlen_q=128)) == 1
    assert derive("num_tiles", SHAPES) == 2 * 12 * 3
    with pytest.raises(KeyError):
        derive("tiles", SHAPES)


def test_head_section_keeps_k_and_v_in_l2() -> None:
    kv_bytes = 2 * 1000 * (128 + 64)
    fitting = L2_SECTION_BYTES // kv_bytes * 3
    assert fitting > 12 * 3  # everything fits
    assert derive("head_section", SHAPES) == 12 * 3
    long = replace(SHAPES, seqlen_k=50_000)
    assert derive("head_section", long) == L2_SECTION_BYTES // (50 * kv_bytes) * 3 == 3
    assert derive("head_section", replace(SHAPES, seqlen_k=10**6)) == 1
    assert derive("head_section", replace(SHAPES, seqlen_k=0)) == 12 * 3


def test_grids() -> None:
    assert {rule: grid(rule, 100, 132) for rule in GRID_RULES} == {"tile_per_cta": 100, "persistent": 100}
    assert {rule: grid(rule, 1000, 132) for rule in GRID_RULES} == {"tile_per_cta": 1000, "persistent": 132}
    with pytest.raises(KeyError):
        grid("one", 1, 1)
