"""Hopper (sm_90a): its limits, and whether a plan keeps to them."""

from __future__ import annotations

from fa3gen.arch.sm90_budget import budget
from fa3gen.model import ForwardPlan

__all__ = ["accumulator_registers", "budget", "check", "launch_registers", "smem_bytes"]

#: Shared memory a CTA may ask for: 227 KB.
SMEM_BYTES = 232448
#: 32-bit registers of an SM; one CTA lives on an SM.
REGISTERS = 65536
#: What setmaxnreg takes.
REGISTER_STEP = 8
REGISTER_MIN = 24
REGISTER_MAX = 256
#: What one thread can address, whatever setmaxnreg gives it.
REGISTERS_PER_THREAD = 255
WARPGROUP_THREADS = 128
#: Rows of a WGMMA, hence query rows of a warpgroup.
WGMMA_M = 64
#: Columns of a WGMMA.
WGMMA_N_STEP = 8
WGMMA_N_MAX = 256
#: Depth of a 16-bit WGMMA: QK walks head_dim and PV walks tile_n in such steps.
WGMMA_K = 16
#: Elements a tensor map's box may have along one dimension.
TMA_BOX_MAX = 256
#: Alignment of a tile under the 128-byte swizzle: its pattern repeats every 1024 bytes.
TILE_ALIGNMENT = 1024

#: Registers a consumer thread needs besides its accumulators (row maxima and sums, addresses, loop state), by consumer
#: warpgroups.  Three and four have 160 and 112 registers, where ptxas needs a larger margin than at 240 to not spill.
#: An estimate that sorts out hopeless plans; whether a kernel spills is read from its cubin.
RESERVED_REGISTERS = {1: 24, 2: 24, 3: 32, 4: 32}

_ELEMENT_BYTES = 2  # bf16 and fp16
_BARRIER_BYTES = 8
_MESSAGES = 4  # what the load warp tells the consumers: slots, each with a full and an empty barrier and int32 words
_MESSAGE_WORDS = 4


def smem_bytes(plan: ForwardPlan) -> int:
    """Dynamic shared memory of the kernel in bytes, as its template lays it out.

    Q tiles, K blocks, V blocks, each aligned for the swizzle; then full and empty barriers of Q, K, V and messages, and
    the messages.
    """
    d = plan.variant.head_dim
    q = plan.q_stages * _tile_bytes(plan.tile_m, d.qk)
    k = plan.stages * _tile_bytes(plan.tile_n, d.qk)
    v = plan.stages * _tile_bytes(plan.tile_n, d.v)
    barriers = 2 * (plan.q_stages + 2 * plan.stages + _MESSAGES)
    words = _MESSAGES * _MESSAGE_WORDS
    if plan.optimistic:
        words += _MESSAGES  # the tile that failed, for each slot
    if plan.pin_pv_wait:
        words += 1  # never written
    return q + k + v + barriers * _BARRIER_BYTES + words * 4


def launch_registers(threads: int) -> int:
    """Registers per thread of a CTA that has the SM for itself, rounded down to setmaxnreg's step."""
    return min(REGISTERS // threads // REGISTER_STEP * REGISTER_STEP, REGISTER_MAX)


def accumulator_registers(plan: ForwardPlan) -> int:
    """Registers of a consumer thread that hold S (fp32), P (16-bit, packed in pairs) and O (fp32) at once.

    A warpgroup's 64 x n tile gives each of its 128 threads n / 2 elements.
    """
    s, o = plan.tile_n // 2, plan.variant.head_dim.v // 2
    return s + s // 2 + o


def check(plan: ForwardPlan) -> list[str]:
    """Why the plan is illegal, a reason each starting with the field to change; empty where it is legal."""
    shape = _check_shape(plan)
    if shape:  # the rest counts warpgroups and stages
        return shape
    return [*_check_head_dim(plan), *_check_registers(plan), *_check_smem(plan)]


def _tile_bytes(rows: int, columns: int) -> int:
    return -(-rows * columns * _ELEMENT_BYTES // TILE_ALIGNMENT) * TILE_ALIGNMENT


def _check_shape(plan: ForwardPlan) -> list[str]:
    reasons = []
    most = max(RESERVED_REGISTERS)
    if plan.tile_m % WGMMA_M or not 1 <= plan.warpgroups <= most:
        reasons.append(f"tile_m {plan.tile_m}: {WGMMA_M} rows for each of 1 to {most} consumer warpgroups")
    if plan.tile_n % WGMMA_K or not WGMMA_K <= plan.tile_n <= WGMMA_N_MAX:
        reasons.append(
            f"tile_n {plan.tile_n}: a multiple of {WGMMA_K} (PV's depth) from {WGMMA_K} to {WGMMA_N_MAX} (QK's columns)"
        )
    if plan.stages < 2:
        reasons.append(f"stages {plan.stages}: at least 2, since K of a block is held until V of it has come")
    if plan.q_stages < 1:
        reasons.append(f"q_stages {plan.q_stages}: at least 1")
    return reasons


def _check_head_dim(plan: ForwardPlan) -> list[str]:
    d = plan.variant.head_dim
    reasons = []
    if d.qk % WGMMA_K or d.qk > TMA_BOX_MAX:
        reasons.append(f"head_dim {d}: q and k need a multiple of {WGMMA_K} (QK's depth), at most {TMA_BOX_MAX}")
    if d.v % WGMMA_N_STEP or d.v > WGMMA_N_MAX:
        reasons.append(f"head_dim {d}: v needs a multiple of {WGMMA_N_STEP}, at most {WGMMA_N_MAX} (PV's columns)")
    return reasons


def _check_registers(plan: ForwardPlan) -> list[str]:
    reasons = []
    for name, value in (("producer_regs", plan.producer_regs), ("consumer_regs", plan.consumer_regs)):
        if value % REGISTER_STEP or not REGISTER_MIN <= value <= REGISTER_MAX:
            reasons.append(
                f"{name} {value}: setmaxnreg takes multiples of {REGISTER_STEP} from {REGISTER_MIN} to {REGISTER_MAX}"
            )
    launched = launch_registers(plan.threads)
    if plan.producer_regs > launched:
        reasons.append(
            f"producer_regs {plan.producer_regs}: the producer gives registers away, and starts with {launched}"
        )
    if plan.consumer_regs < launched:
        reasons.append(f"consumer_regs {plan.consumer_regs}: consumers take registers, and start with {launched}")
    asked = plan.producer_regs + plan.warpgroups * plan.consumer_regs
    owned = launched * (plan.warpgroups + 1)
    if asked > owned:
        reasons.append(
            f"consumer_regs {plan.consumer_regs}: {plan.producer_regs} + {plan.warpgroups} x {plan.consumer_regs}"
            f" = {asked} registers a lane, and the CTA has {owned}"
        )
    usable = min(plan.consumer_regs, REGISTERS_PER_THREAD) - RESERVED_REGISTERS[plan.warpgroups]
    needed = accumulator_registers(plan)
    if needed > usable:
        reasons.append(
            f"tile_n {plan.tile_n}: S, P and O take {needed} registers a thread,"
            f" and {usable} of {plan.consumer_regs} are usable"
        )
    return reasons


def _check_smem(plan: ForwardPlan) -> list[str]:
    needed = smem_bytes(plan)
    if needed <= SMEM_BYTES:
        return []
    sizes = f"tile_n {plan.tile_n}, stages {plan.stages}, q_stages {plan.q_stages}"
    return [f"{sizes}: {needed} bytes of shared memory, and a CTA has {SMEM_BYTES}"]
