"""The budget of a step, and the mainloops in the machine code that it is held against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fa3gen import loops, sass
from fa3gen.arch import ARCHS
from fa3gen.arch.budget import Budget, Call, milliseconds
from fa3gen.model import Arch, ForwardPlan, Softmax, parse_name
from fa3gen.plan import resolve
from tests import built_kernels

D64, D128, D256 = (resolve(parse_name(f"fwd_bf16_d{d}_full_sm90a")) for d in (64, 128, 256))
CAUSAL = resolve(parse_name("fwd_bf16_d128_causal_sm90a"))


def _budget(plan: ForwardPlan, **changes: Any) -> Budget:
    return ARCHS[Arch.SM90A].budget(replace(plan, **changes))


# --- the model


@pytest.mark.parametrize(
    ("plan", "tile", "tensor", "smem"),
    [
        (D64, (192, 128), 1536, 1216),
        (D128, (128, 176), 2816, 2368),
        (D128, (128, 128), 2048, 1792),
        (D256, (128, 80), 2560, 2432),
        (D256, (128, 64), 2048, 2048),
    ],
)
def test_clocks_of_known_tiles(plan: ForwardPlan, tile: tuple[int, int], tensor: float, smem: float) -> None:
    clocks = _budget(plan, tile_m=tile[0], tile_n=tile[1]).clocks
    assert (clocks["tensor"], clocks["smem"]) == (tensor, smem)


def test_the_binding_unit_is_the_slowest() -> None:
    found = _budget(D64, tile_m=64)
    assert found.binding == "smem"
    assert found.predicted == max(found.clocks.values()) == found.clocks["smem"]
    assert _budget(D64).tflops(1755, 132) == pytest.approx(4096 * 132 * 1.755e-3)  # the tensor pipe's peak


def test_instructions_follow_the_softmax() -> None:
    exact, lazy = (_budget(D128, softmax=softmax) for softmax in (Softmax.EXACT, Softmax.LAZY))
    assert exact.instructions["MUFU"] == 66
    assert lazy.instructions["MUFU"] == 64  # the factors of O come behind a branch
    assert exact.instructions["FMUL"] - lazy.instructions["FMUL"] == 64  # O: 64 registers a thread
    assert exact.issue_slots - lazy.issue_slots == pytest.approx(64, abs=8)
    optimistic = _budget(D128, softmax=Softmax.OPTIMISTIC)
    assert (optimistic.instructions["FMNMX"], optimistic.instructions["SHFL"]) == (1, 0)
    assert exact.issue_slots > lazy.issue_slots > optimistic.issue_slots


def test_a_call_is_tiles_on_sms() -> None:
    step = _budget(D128)

    def steps(plan: ForwardPlan, call: Call, sms: int = 132) -> float:
        return milliseconds(plan, step, call, clock_mhz=1000, sms=sms) * 1e6 / step.predicted

    whole = Call(1, 132, 128, 1024)  # a tile of 8 steps for each SM
    assert steps(D128, whole) == pytest.approx(8)
    assert steps(D128, replace(whole, heads=133)) == pytest.approx(16)  # one SM has two
    assert steps(D128, replace(whole, seqlen_k=1025)) == pytest.approx(9)
    square = Call(1, 1, 1024, 1024)
    # rows 0 to 63 of a tile see half of the last block, which is a step all the same
    assert steps(CAUSAL, square, sms=1) == pytest.approx(sum(range(1, 9)))
    assert steps(CAUSAL, square, sms=8) == pytest.approx(8)  # the longest tile
    assert steps(CAUSAL, Call(1, 1, 1024, 64), sms=1) == pytest.approx(0.5)
    assert steps(D128, Call(0, 1, 128, 128)) == 0


# --- loops in machine code

HEAD = ".text.kernel:\n"


def _code(*lines: str) -> str:
    return HEAD + "".join(line if line.startswith(".L") else f"        /*0000*/       {line} ;\n" for line in lines)


STEP = (
    *("HGMMA.64x16x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "MUFU.EX2 R1, R2"),
    *("MUFU.EX2 R3, R4", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R5, R6"),
)
CODE = _code(
    "S2R R5, SR_TID.X",
    *(".L_x_0:\n", "MOV R1, R2"),  # tiles
    ".L_x_1:\n",  # blocks with a mask
    *("FSEL R1, R2, R3, P0", "FSEL R1, R2, R3, P0", *STEP, "@P1 BRA `(.L_x_1)"),
    ".L_x_2:\n",  # blocks without
    *("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR20], R4", "@!P0 BRA `(.L_x_5)"),
    ".L_x_3:\n",
    *(*STEP, "@!P2 BRA `(.L_x_4)", "FMUL R1, R1, R2", "STL [R1], R2"),
    ".L_x_4:\n",
    *("@P1 BRA `(.L_x_2)", "@P0 BRA `(.L_x_0)", "EXIT"),
    ".L_x_5:\n",  # a retry, out of the way
    *("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR20], R4", "@!P0 BRA `(.L_x_5)", "BRA `(.L_x_3)"),
)


def test_loops_are_the_innermost_with_multiplies() -> None:
    masked, plain = loops.loops(CODE)
    assert (masked.masked, plain.masked) == (True, False)
    assert loops.mainloop(CODE) == plain
    assert (plain.exponentials, plain.under_pv, plain.barrier_waits) == (3, 2, 1)
    # neither the retry nor what is behind the branch is on every way
    assert len(plain.always) == 2 + len(STEP) + 2
    assert [i.kind for i in plain.sometimes] == ["FMUL", "STL", "SYNCS", "BRA", "BRA"]
    assert (masked.local, plain.local) == (0, 1)


def test_no_mainloop_is_an_error() -> None:
    with pytest.raises(loops.CodeError, match="no loop"):
        loops.mainloop(_code("EXIT"))


def test_what_misses_the_budget_is_said() -> None:
    problems = loops.compare(replace(D64, pin_pv_wait=True), CODE).problems
    assert [problem.split()[1] for problem in problems[:2]] == ["HGMMA", "MUFU"]
    assert any("instructions a step" in problem for problem in problems)
    assert any("spills" in problem for problem in problems)
    assert any(problem.startswith("pin_pv_wait: 2 of 3") for problem in problems)


#: What no shipped plan does.
OTHERS = [resolve(plan.variant, {"softmax": softmax}) for plan in (D64, CAUSAL, D256) for softmax in ("exact", "lazy")]


@pytest.mark.skipif(sass.find_tool() is None, reason="there is no nvdisasm")
@pytest.mark.parametrize("plan", [*built_kernels.plans(), *OTHERS], ids=lambda plan: plan.name)
def test_the_mainloop_keeps_to_the_budget(plan: ForwardPlan) -> None:
    """Equal in multiplies and exponentials, and within loops.TOLERANCE in instructions."""
    shipped = plan in built_kernels.plans()
    built = built_kernels.built()[plan.name] if shipped else built_kernels.built_alone(plan)
    text = sass.disassemble(built.cubin)
    assert loops.compare(plan, text).problems == ()
    unmasked = [loop.masked for loop in loops.loops(text)].count(False)
    assert 1 <= unmasked < len(loops.loops(text))  # there are loops of both kinds
