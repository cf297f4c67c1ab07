"""A kernel's results against the reference.

Bound, over the rows that see a key: max|out - exact| <= 2 * max|plain - exact| + 1e-5, where ``plain`` is
straightforward torch in the kernel's dtype and ``exact`` is float64; and, where rounding of scores leaves ``plain`` no
precision, a bound of its own: the rounding of P and out, a few units of the dtype of the largest value.  Rows that see
no key have out 0 and LSE -inf.  Every other run must give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fa3.runtime import attention, reference
from torch import Tensor

from fa3gen.verify.cases import Case
from fa3gen.verify.inputs import Inputs, guarded, make
from fa3gen.verify.target import Target

ABSOLUTE = 1e-5
LSE_ABSOLUTE = 1e-3
#: Scores of some thousands have no more: the tensor core cuts a sum to float32 after each 16 products, up to 2**-23 of
#: it each time, 16 times with head_dim 256.
LSE_RELATIVE = 16 * 2.0**-23
#: Of the largest value: 8 times the unit roundoff.
ROUNDING = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}


@dataclass(frozen=True)
class Verdict:
    """What came of a case: the error as a share of what is allowed, and what is wrong."""

    ratio: float
    problems: tuple[str, ...] = ()


def check(target: Target, case: Case) -> Verdict:
    """Runs ``case`` through the public call and twice more, and judges."""
    inputs = make(case, target.dtype, target.head_dim, target.head_dim_v, target.device)
    shape = (*inputs.q.shape[:3], target.head_dim_v)
    lse_shape = (case.batch, case.heads_q, case.seqlen_q)
    sm_margin = 0 if case.ctas is None else target.num_sms - case.ctas
    options: dict[str, Any] = {
        "causal": target.causal,
        "softmax_scale": case.softmax_scale,
        "sm_margin": sm_margin,
    }

    out = guarded(shape, target.dtype, target.device, case.layout)
    _, lse = attention(*inputs, **options, out=out.view, return_lse=True, bundle=target.bundle)
    # the kernel itself, so that LSE has a guard and strides, too
    again = guarded(shape, target.dtype, target.device)
    lse_again = guarded(lse_shape, torch.float32, target.device, "padded")
    target.launch(sm_margin, case.softmax_scale, inputs, again.view, lse_again.view)
    alone = attention(*inputs, **options, bundle=target.bundle)

    problems = []
    for name, guard in (("out", out), ("out of the second run", again), ("lse", lse_again)):
        problems += [f"{name}: {n} of its elements not written" for n in [guard.unwritten()] if n]
        problems += [f"{name}: {n} words around it overwritten" for n in [guard.touched()] if n]
    for name, first, second in (("out", out.view, again.view), ("out", out.view, alone), ("lse", lse, lse_again.view)):
        problems += different(name, first, second)
    ratio, wrong = judge(case, inputs, out.view, lse, target.causal)
    return Verdict(ratio, (*problems, *wrong))


def judge(case: Case, inputs: Inputs, out: Tensor, lse: Tensor, causal: bool) -> tuple[float, list[str]]:
    """The error as a share of the bound, and what is wrong with out and LSE."""
    scale = case.softmax_scale
    exact, exact_lse = reference.attention(
        *inputs,
        causal=causal,
        softmax_scale=scale,
        return_lse=True,
        compute_dtype=torch.float64,
        out_dtype=torch.float64,
    )
    plain = reference.attention(*inputs, causal=causal, softmax_scale=scale, compute_dtype=out.dtype)
    seen = exact_lse > -torch.inf  # (batch, heads, seqlen_q)
    rows = seen.transpose(1, 2)
    problems = [
        *located("out", out.isnan(), out, exact, "NaN"),
        *located("out", out.isinf(), out, exact, "infinite"),
        *located("out", (out != 0) & ~rows[..., None], out, exact, "not 0 in rows that see no key"),
        *located("lse", (lse != -torch.inf) & ~seen, lse, exact_lse, "not -inf in rows that see no key"),
    ]
    lse_bound = LSE_ABSOLUTE + LSE_RELATIVE * exact_lse.abs()
    problems += located("lse", ~((lse - exact_lse).abs() <= lse_bound) & seen, lse, exact_lse, "off by over 1e-3")
    if not rows.any():
        return 0.0, problems

    error = (out.double() - exact).abs()
    bound = 2 * float((plain.double() - exact).abs()[rows].max()) + ABSOLUTE
    bound = min(bound, ROUNDING[out.dtype] * float(inputs.v.abs().max()) + ABSOLUTE)
    problems += located("out", ~(error <= bound) & rows[..., None], out, exact, f"off by over {bound:.3g}")
    return float(error[rows].nan_to_num(nan=torch.inf).max()) / bound, problems


def different(name: str, first: Tensor, second: Tensor) -> list[str]:
    """That two runs gave the same bits."""
    word = {2: torch.int16, 4: torch.int32}[first.dtype.itemsize]
    unequal = first.contiguous().view(word) != second.contiguous().view(word)
    return located(name, unequal, second, first, "not what the first run gave")


def located(name: str, wrong: Tensor, found: Tensor, expected: Tensor, what: str) -> list[str]:
    """Where ``wrong`` holds: how often, where first, and where worst; nothing where it does not."""
    number = int(wrong.sum())
    if number == 0:
        return []
    axes = "(batch, row, head, dim)" if found.dim() == 4 else "(batch, head, row)"
    distance = (found.double() - expected.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = torch.where(wrong, distance, -1.0).flatten().argmax()
    places = [tuple(int(i) for i in torch.nonzero(wrong)[0]), _coordinates(int(worst), found.shape)]
    shown = [f"{place} is {float(found[place]):.6g} for {float(expected[place]):.6g}" for place in places]
    return [f"{name}: {number} of {wrong.numel()} {what}; {axes} first {shown[0]}, worst {shown[1]}"]


def _coordinates(flat: int, shape: torch.Size) -> tuple[int, ...]:
    place: list[int] = []
    for extent in reversed(shape):
        flat, index = divmod(flat, extent)
        place.insert(0, index)
    return tuple(place)
