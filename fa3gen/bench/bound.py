"""How fast a bundle's kernel can be at most, by the budget of its plan."""

from __future__ import annotations

from fa3.contract import KernelEntry

from fa3gen.arch import ARCHS
from fa3gen.arch.budget import SMS, Call, milliseconds
from fa3gen.bench.shapes import Shape
from fa3gen.errors import PlanError
from fa3gen.model import ForwardPlan, parse_name
from fa3gen.plan import PLAN_FIELDS, resolve


def tflops(entry: KernelEntry, shape: Shape, clock_mhz: float, sms: int = SMS) -> float | None:
    """TFLOP/s of ``shape`` at most; None where the plan is not one of this version."""
    plan = _plan(entry)
    if plan is None:
        return None
    call = Call(shape.batch, shape.heads_q, shape.seqlen_q, shape.seqlen_k)
    budget = ARCHS[plan.variant.arch].budget(plan)
    return shape.tflops(milliseconds(plan, budget, call, clock_mhz=clock_mhz, sms=sms))


def _plan(entry: KernelEntry) -> ForwardPlan | None:
    try:
        return resolve(parse_name(entry.name), {name: entry.plan[name] for name in PLAN_FIELDS})
    except (PlanError, ValueError, KeyError):
        return None
