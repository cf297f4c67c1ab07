"""The parameter list of a kernel.  That the compiled kernel has it is checked by every build (test_compile.py)."""

from __future__ import annotations

import pytest
from fa3.contract import DERIVED, GRID_RULES, WORKSPACE, ParamKind

from fa3gen import abi, matrix
from fa3gen.arch import ARCHS
from fa3gen.model import ForwardPlan, parse_name
from fa3gen.plan import resolve

PLANS = matrix.select_plans(matrix.load("variants.yaml"))


def _names(plan: ForwardPlan) -> list[str]:
    return [param.name for param in abi.signature(plan).params]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_sources_are_known(plan: ForwardPlan) -> None:
    signature = abi.signature(plan)
    for param in signature.params:
        kind, name, *axis = param.source.split(":")
        known = {"tensor": signature.tensors, "extent": signature.tensors, "stride": signature.tensors}
        known |= {"scalar": signature.scalars, "derived": tuple(DERIVED), "workspace": tuple(WORKSPACE)}
        assert name in known[kind]
        assert len(axis) == (kind in ("extent", "stride"))
        assert (param.tensor_map is not None) == (param.kind is ParamKind.TENSORMAP)
    assert len({param.name for param in signature.params}) == len(signature.params)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_boxes_are_what_the_tiles_need(plan: ForwardPlan) -> None:
    maps = {param.name: param.tensor_map for param in abi.signature(plan).params if param.tensor_map}
    assert [*maps] == ["tma_q", "tma_k", "tma_v"]
    rows = {"tma_q": 64, "tma_k": plan.tile_n, "tma_v": plan.tile_n}
    for name, tensor_map in maps.items():
        head_dim = plan.variant.head_dim.v if name == "tma_v" else plan.variant.head_dim.qk
        assert tensor_map.box == (32 if head_dim == 96 else 64, rows[name], 1, 1)  # odd multiples of 32 need 64 bytes
        assert tensor_map.box[0] * 2 == tensor_map.swizzle_bytes
        assert tensor_map.dtype == plan.variant.dtype.value


def test_what_a_kernel_does_not_use_is_not_there() -> None:
    full, causal = (resolve(parse_name(f"fwd_bf16_d128_{mask}_sm90a")) for mask in ("full", "causal"))
    static = resolve(parse_name("fwd_bf16_d128_full_sm90a"), {"scheduler": "static"})
    assert set(_names(causal)) - set(_names(full)) == {"head_section"}
    assert set(_names(full)) - set(_names(static)) == {"tile_counter"}
    assert abi.launch(static).grid == "tile_per_cta"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_launch(plan: ForwardPlan) -> None:
    launch = abi.launch(plan)
    assert launch.grid in GRID_RULES
    assert (launch.threads, launch.tile_m) == (128 * (plan.tile_m // 64 + 1), plan.tile_m)
    assert launch.smem_bytes == ARCHS[plan.variant.arch].smem_bytes(plan)
