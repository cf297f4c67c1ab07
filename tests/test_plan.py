"""Plans: legal, with true reasons, and rejected one step beyond each limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa3gen.arch import sm90
from fa3gen.axes import spelled
from fa3gen.errors import PlanError
from fa3gen.families import FAMILIES
from fa3gen.model import Arch, HeadDim, Variant, parse_name
from fa3gen.plan import PLAN_FIELDS, ForwardPlan, Scheduler, Softmax, load_rules, resolve, resolve_all, shipped_rules

SUPPORTED = [variant for family in FAMILIES.values() for variant in family.variants(Arch.SM90A)]
D64, D128, D256 = (parse_name(f"fwd_bf16_d{d}_full_sm90a") for d in (64, 128, 256))

FIGURE = "    figure: 650 TFLOP/s\n    date: 2026-01-31\n"


def _default(variant: Variant) -> ForwardPlan:
    return FAMILIES[variant.family].default_plan(variant)


def _rules(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "sm90a.yaml"
    path.write_text("schema: 1\nrules:\n" + text)
    return load_rules(path)


@pytest.mark.parametrize("variant", SUPPORTED, ids=lambda variant: variant.name)
def test_plans_are_legal_and_say_why(variant: Variant) -> None:
    for plan in (_default(variant), *resolve_all(variant)):
        assert sm90.check(plan) == []
        reasons = dict(reason.split(": ", 1) for reason in plan.reasons)
        assert set(reasons) == {f"{name} {spelled(getattr(plan, name))}" for name in PLAN_FIELDS}
        assert all(why.strip() for why in reasons.values())


def test_figures_in_the_default_reasons() -> None:
    """What the reasons of families/fwd.py say in numbers."""

    def kilobytes(variant: Variant, **changes: Any) -> int:
        return sm90.smem_bytes(replace(_default(variant), **changes)) // 1024

    assert sm90.accumulator_registers(_default(D64)) == 128
    assert sm90.accumulator_registers(replace(_default(D64), tile_n=144)) == 140
    assert sm90.accumulator_registers(_default(D128)) == 160
    assert (kilobytes(D128), kilobytes(D128, stages=3)) == (192, 256)
    assert kilobytes(D256, tile_n=96) == 256
    assert kilobytes(D256, stages=3) == 304
    assert kilobytes(D256, q_stages=2) == 288
    assert (sm90.launch_registers(384), sm90.launch_registers(512)) == (168, 128)


@pytest.mark.parametrize(
    ("variant", "changes", "reason"),
    [
        (D128, {"tile_m": 96}, "tile_m 96: 64 rows for each of 1 to 4 consumer warpgroups"),
        (D128, {"tile_m": 0}, "tile_m 0: 64 rows for each of 1 to 4 consumer warpgroups"),
        (D128, {"tile_m": 320}, "tile_m 320: 64 rows for each of 1 to 4 consumer warpgroups"),
        (D128, {"tile_n": 0}, "tile_n 0: a multiple of 16 (PV's depth) from 16 to 256 (QK's columns)"),
        (D128, {"tile_n": 120}, "tile_n 120: a multiple of 16 (PV's depth) from 16 to 256 (QK's columns)"),
        (D128, {"tile_n": 272}, "tile_n 272: a multiple of 16 (PV's depth) from 16 to 256 (QK's columns)"),
        (D128, {"stages": 1}, "stages 1: at least 2, since K of a block is held until V of it has come"),
        (D128, {"q_stages": 0}, "q_stages 0: at least 1"),
        (D128, {"producer_regs": 20}, "producer_regs 20: setmaxnreg takes multiples of 8 from 24 to 256"),
        (D128, {"producer_regs": 16}, "producer_regs 16: setmaxnreg takes multiples of 8 from 24 to 256"),
        (D128, {"consumer_regs": 236}, "consumer_regs 236: setmaxnreg takes multiples of 8 from 24 to 256"),
        (D128, {"consumer_regs": 264}, "consumer_regs 264: setmaxnreg takes multiples of 8 from 24 to 256"),
        (
            D128,
            {"producer_regs": 176, "consumer_regs": 168, "tile_n": 16},
            "producer_regs 176: the producer gives registers away, and starts with 168",
        ),
        (D128, {"consumer_regs": 160}, "consumer_regs 160: consumers take registers, and start with 168"),
        (D128, {"consumer_regs": 248}, "consumer_regs 248: 24 + 2 x 248 = 520 registers a lane, and the CTA has 504"),
        (D128, {"producer_regs": 32}, "consumer_regs 240: 32 + 2 x 240 = 512 registers a lane, and the CTA has 504"),
        (D64, {"producer_regs": 40}, "consumer_regs 160: 40 + 3 x 160 = 520 registers a lane, and the CTA has 512"),
        (D64, {"tile_n": 144}, "tile_n 144: S, P and O take 140 registers a thread, and 128 of 160 are usable"),
        (
            D128,
            {"tile_n": 208},
            "tile_n 208: S, P and O take 220 registers a thread, and 216 of 240 are usable",
        ),
        (
            D256,
            {"tile_n": 96},
            "tile_n 96, stages 2, q_stages 1: 262368 bytes of shared memory, and a CTA has 232448",
        ),
    ],
)
def test_one_step_beyond_is_rejected(variant: Variant, changes: dict[str, Any], reason: str) -> None:
    assert reason in sm90.check(replace(_default(variant), **changes))
    with pytest.raises(PlanError) as caught:
        resolve(variant, {"softmax": "optimistic", **changes})
    assert f"{variant.name}: {reason}" in [d.message for d in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        (D128, {"tile_n": 192, "q_stages": 1}),
        (D128, {"tile_n": 176, "q_stages": 1}),
        (D128, {"producer_regs": 40, "consumer_regs": 232}),
        (D64, {"tile_m": 256, "tile_n": 64, "stages": 4, "producer_regs": 24, "consumer_regs": 112}),
        (D64, {"stages": 3}),
        (D64, {"tile_n": 16}),
        (D256, {"tile_n": 16, "stages": 9, "q_stages": 1}),
        (D256, {"tile_n": 32, "q_stages": 2}),
    ],
)
def test_up_to_the_limit_is_legal(variant: Variant, changes: dict[str, Any]) -> None:
    plan = resolve(variant, changes)
    assert {name: getattr(plan, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("head_dim", "reason"),
    [
        (HeadDim(264, 64), "head_dim 264x64: q and k need a multiple of 16 (QK's depth), at most 256"),
        (HeadDim(72, 64), "head_dim 72x64: q and k need a multiple of 16 (QK's depth), at most 256"),
        (HeadDim(64, 264), "head_dim 64x264: v needs a multiple of 8, at most 256 (PV's columns)"),
        (HeadDim(64, 68), "head_dim 64x68: v needs a multiple of 8, at most 256 (PV's columns)"),
    ],
)
def test_head_dims_beyond_the_hardware(head_dim: HeadDim, reason: str) -> None:
    plan = replace(_default(D64), variant=replace(D64, head_dim=head_dim))
    assert reason in sm90.check(plan)


def test_o_takes_no_shared_memory() -> None:
    wide = replace(_default(D64), variant=replace(D64, head_dim=HeadDim(64, 128)))
    grown = sm90.smem_bytes(wide) - sm90.smem_bytes(_default(D64))
    assert grown == 2 * (128 * 64 * 2)  # two V blocks


def test_tiles_are_aligned_for_the_swizzle() -> None:
    small = replace(_default(D64), variant=replace(D64, head_dim=HeadDim(16, 16)), tile_n=16, stages=2, q_stages=1)
    one, three = sm90.smem_bytes(small), sm90.smem_bytes(replace(small, tile_n=48))
    assert three - one == 4 * (2048 - 1024)  # two blocks of K and of V: 512 and 1536 bytes each, rounded up


def test_overrides_are_parsed_and_named_as_reasons() -> None:
    plan = resolve(D128, {"tile_n": "96", "scheduler": "static", "softmax": Softmax.LAZY, "pin_pv_wait": "true"})
    assert (plan.tile_n, plan.scheduler, plan.softmax, plan.pin_pv_wait) == (96, Scheduler.STATIC, Softmax.LAZY, True)
    assert "tile_n 96: asked for" in plan.reasons
    assert "scheduler static: asked for" in plan.reasons
    assert "stages 2: as in the default" in plan.reasons  # what it said was about tile_n 128
    assert len(plan.reasons) == len(PLAN_FIELDS)


def test_overrides_of_other_fields_keep_the_reasons_of_sizes() -> None:
    assert "stages 2: 3 would need 256 KB" in resolve(D128, {"scheduler": "static"}).reasons


@pytest.mark.parametrize("value", [1.5, True, -64, "0x40", "", None, [64]])
def test_overrides_of_a_wrong_type(value: object) -> None:
    with pytest.raises(PlanError, match="P002"):
        resolve(D128, {"tile_m": value})


def test_first_matching_rule_wins(tmp_path: Path) -> None:
    rules = _rules(
        tmp_path,
        f"  - match: {{family: fwd, head_dim: 128, mask: full}}\n    tile_n: 112\n{FIGURE}"
        f"  - match: {{family: fwd, head_dim: [128, 256]}}\n    tile_n: 64\n    softmax: lazy\n{FIGURE}",
    )
    full, causal = resolve(D128, rules=rules), resolve(parse_name("fwd_fp16_d128_causal_sm90a"), rules=rules)
    assert (full.tile_n, full.softmax) == (112, Softmax.OPTIMISTIC)
    assert (causal.tile_n, causal.softmax) == (64, Softmax.LAZY)
    assert "tile_n 112: 650 TFLOP/s (2026-01-31)" in full.reasons
    assert resolve(D64, rules=rules) == _default(D64)


def test_override_of_a_rule(tmp_path: Path) -> None:
    rules = _rules(tmp_path, f"  - match: {{family: fwd, head_dim: 128}}\n    tile_n: 112\n    q_stages: 1\n{FIGURE}")
    plan = resolve(D128, {"tile_n": 96}, rules=rules)
    assert (plan.tile_n, plan.q_stages) == (96, 1)


def test_a_rule_reached_by_some_of_its_variants_is_fine(tmp_path: Path) -> None:
    rules = _rules(
        tmp_path,
        f"  - match: {{family: fwd, head_dim: 128, dtype: bf16}}\n    tile_n: 112\n{FIGURE}"
        f"  - match: {{family: fwd, head_dim: 128}}\n    tile_n: 96\n{FIGURE}",
    )
    assert resolve(parse_name("fwd_fp16_d128_full_sm90a"), rules=rules).tile_n == 96


@pytest.mark.parametrize("arch", Arch)
def test_shipped_rules_load(arch: Arch) -> None:
    for rule in shipped_rules(arch):
        assert rule.figure
        assert rule.values


# --- several plans of a variant

SEVERAL = (
    "  - match: {family: fwd, head_dim: 128, mask: causal}\n"
    f"    when: {{min_seqlen_k: 1024, max_seqlen_q: 4096}}\n    tile_n: 96\n{FIGURE}"
    f"  - match: {{family: fwd, head_dim: 128}}\n    when: {{max_seqlen_k: 2047}}\n    tile_n: 80\n{FIGURE}"
    f"  - match: {{family: fwd, head_dim: [64, 128]}}\n    softmax: lazy\n{FIGURE}"
    f"  - match: {{family: fwd, head_dim: 256}}\n    when: {{max_batch: 1}}\n    softmax: lazy\n{FIGURE}"
)


def test_plans_come_in_the_order_of_dispatch_and_the_last_is_general(tmp_path: Path) -> None:
    rules = _rules(tmp_path, SEVERAL)
    causal = parse_name("fwd_bf16_d128_causal_sm90a")
    plans = resolve_all(causal, rules=rules)
    assert [plan.name for plan in plans] == [
        "fwd_bf16_d128_causal_sm90a__n96_optimistic",
        "fwd_bf16_d128_causal_sm90a__n80_optimistic",
        "fwd_bf16_d128_causal_sm90a",
    ]
    assert [plan.when and plan.when.to_json() for plan in plans] == [
        {"min_seqlen_k": 1024, "max_seqlen_q": 4096},
        {"max_seqlen_k": 2047},
        None,
    ]
    assert [plan.priority for plan in plans] == [0, 1, 2]
    assert "tile_n 96: 650 TFLOP/s (2026-01-31)" in plans[0].reasons
    assert len(resolve_all(D128, rules=rules)) == 2
    assert resolve_all(D64, rules=rules) == (resolve(D64, rules=rules),)
    for variant in (causal, D64, D128, D256):
        assert resolve_all(variant, rules=rules)[-1] == resolve(variant, rules=rules)
        assert resolve(variant, rules=rules).when is None


def test_the_general_plan_is_the_default_where_every_rule_has_bounds(tmp_path: Path) -> None:
    further, general = resolve_all(D256, rules=_rules(tmp_path, SEVERAL))
    assert (further.softmax, further.name) == (Softmax.LAZY, "fwd_bf16_d256_full_sm90a__lazy")
    assert replace(general, priority=0) == _default(D256)


def test_overrides_are_of_the_general_plan_and_named(tmp_path: Path) -> None:
    plan = resolve(D128, {"tile_n": 96, "softmax": "lazy"}, rules=_rules(tmp_path, SEVERAL))
    assert (plan.name, plan.when) == ("fwd_bf16_d128_full_sm90a__n96", None)
    assert resolve(D128, {"tile_n": 128}).name == D128.name


@pytest.mark.parametrize("variant", SUPPORTED, ids=lambda variant: variant.name)
def test_shipped_plans_differ_and_the_last_has_no_bounds(variant: Variant) -> None:
    plans = resolve_all(variant)
    assert len({plan.name for plan in plans}) == len(plans)
    assert [plan.when is None for plan in plans] == [False] * (len(plans) - 1) + [True]
    assert plans[-1].name == variant.name
