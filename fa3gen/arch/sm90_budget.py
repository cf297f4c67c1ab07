"""The budget of a step on Hopper: what each unit of an SM does, at the rate that the unit has at most.

The rates are of an SM in a clock.  A step is a lower bound: it takes what its slowest unit takes, where all of them
overlap without a gap.
"""

from __future__ import annotations

from fa3gen.arch.budget import Budget
from fa3gen.model import ForwardPlan, Softmax

#: Multiply-adds of 16-bit operands.
TENSOR_FMAS = 2048
#: Exponentials.
SFU_RESULTS = 16
#: Bytes that shared memory gives or takes.
SMEM_BYTES = 128
#: Bytes that come from L2.
L2_BYTES = 64
#: Warp instructions.
ISSUE_SLOTS = 4

_ELEMENT_BYTES = 2
_WARPS = 4  # of a warpgroup
_THREADS = 128
_ROWS = 64  # of a warpgroup
_THREAD_ROWS = 2
_WGMMA_K = 16

#: Instructions around the multiplies and the softmax, as ptxas makes them: the loop and its barriers, and descriptors
#: for each WGMMA of QK (whose A and B move along head_dim) and of PV.
_LOOP = 42
_DESCRIPTORS_QK = 5
_DESCRIPTORS_PV = 2


def budget(plan: ForwardPlan) -> Budget:
    """Clocks and instructions of a step of ``plan``'s mainloop."""
    d = plan.variant.head_dim
    m, n, warpgroups = plan.tile_m, plan.tile_n, plan.warpgroups
    made = instructions(plan)
    # every warpgroup reads its own Q, and all of K and V; P is in registers
    operands = warpgroups * (_ROWS * d.qk + n * d.qk + n * d.v) * _ELEMENT_BYTES
    loaded = n * (d.qk + d.v) * _ELEMENT_BYTES
    return Budget(
        clocks={
            "tensor": m * n * (d.qk + d.v) / TENSOR_FMAS,
            "sfu": warpgroups * _THREADS * made["MUFU"] / SFU_RESULTS,
            "smem": (operands + loaded) / SMEM_BYTES,
            "issue": warpgroups * _WARPS * sum(made.values()) / ISSUE_SLOTS,
            "l2": loaded / L2_BYTES,
        },
        instructions=made,
        flops=2.0 * m * n * (d.qk + d.v),
    )


def instructions(plan: ForwardPlan) -> dict[str, int]:
    """Instructions of a consumer warp in a step, by kind, without what a lazy softmax does when a maximum grew.

    A thread has two rows of the scores and of O.
    """
    d = plan.variant.head_dim
    scores, out = plan.tile_n // 2, d.v // 2
    made = {
        "HGMMA": d.qk // _WGMMA_K + plan.tile_n // _WGMMA_K,
        "FFMA": scores,  # score * scale - maximum * scale
        "MUFU": scores,
        "FADD": scores,  # the sum
        "FMUL": 0,
        "FMNMX": 0,
        "SHFL": 0,
        "F2FP": scores // 2,  # P, two in a register
        "other": _LOOP + _DESCRIPTORS_QK * (d.qk // _WGMMA_K) + _DESCRIPTORS_PV * (plan.tile_n // _WGMMA_K),
    }
    if not plan.optimistic:  # the maximum: over the thread's scores, the one before and the row's other threads
        made["FMNMX"] = scores + 2 * _THREAD_ROWS
        made["SHFL"] = 2 * _THREAD_ROWS
        made["FMUL"] = _THREAD_ROWS  # maximum * scale
    if plan.softmax is Softmax.EXACT:  # the factor of O and of the sum, and O times the factor
        made["MUFU"] += _THREAD_ROWS
        made["FFMA"] += _THREAD_ROWS
        made["FMUL"] += out + _THREAD_ROWS
    if plan.lazy:  # how much the maximum grew, and whether that is too much for a row of the warp
        made["FADD"] += _THREAD_ROWS
        made["FMUL"] += _THREAD_ROWS
        made["FMNMX"] += _THREAD_ROWS - 1
        made["other"] += 4  # compare, vote and two branches
    if plan.optimistic:  # whether a sum outgrew its limit in a row of the warp
        made["FMNMX"] += _THREAD_ROWS - 1
        made["other"] += 4
    return made
