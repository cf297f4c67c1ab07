"""Online softmax in base 2 on a warpgroup's 64 x n scores (FlashAttention-2, algorithm 1; FlashAttention-3, section 3).

A thread holds 2 rows, 4 neighbouring threads share a row.  ``Rows.maximum`` is that of the raw scores, equal in the 4
threads; ``Rows.total`` is the thread's own share of the sum, added up in :func:`finish`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr, range_constexpr
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from fa3gen.device import wgmma

ROWS = 2
_THREADS_OF_A_ROW = 4
_LN_2 = math.log(2.0)
#: A maximum may lag behind by 2^8 before O is rescaled: P stays below 256, and O and the sum keep their precision.
_LAZY_GROWTH = 8.0


@dataclass(frozen=True)
class Range:
    """Powers of 2 between which P may lie while the shift stays.

    P starts at 2^``start`` where a score equals the maximum.  A thread's sum of a block bounds each of its P.  When it
    passes 2^``limit``, the shift is raised before that P is used, so that the sum becomes 2^``fresh``; when it passes
    2^``overflow``, the tile has failed.  What O is scaled with must be a normal number, at least 2^-126: a smaller one
    would be flushed to 0.
    """

    start: int
    limit: int
    fresh: int
    overflow: int


#: The shift follows the maximum.
FOLLOWING = Range(start=0, limit=0, fresh=0, overflow=1)
#: bf16 has fp32's exponents, so P is as precise at 2^-16 or 2^110 as at 1.  While no share of a row's sum passes the
#: limit, all of it is at most 1, and O no larger than V: then O need not be looked at.
BF16 = Range(start=-16, limit=-2, fresh=-16, overflow=110)
#: fp16 loses precision below 2^-14 and ends at 65504.  P starts at 1, as in an exact softmax: lower, and thousands of
#: light keys beside a heavy one would be rounded to 0.  So a key that outweighs those before it by 2^15 (11 in natural
#: units) has its tile done again.
FP16 = Range(start=0, limit=8, fresh=0, overflow=15)


def optimistic_range(element) -> Range:
    return BF16 if element is cutlass.BFloat16 else FP16


@dataclass(frozen=True)
class Rows:
    """Register tensors of a thread, one element a row.

    P is 2^(score * scale - shift), and the shift is maximum * scale less where the range starts; 0 in a row that has
    seen no key, whose maximum is -inf.
    """

    maximum: cute.Tensor
    shift: cute.Tensor
    total: cute.Tensor
    block_total: cute.Tensor  # of the latest block
    correction: cute.Tensor  # what the latest block scales O with
    raised: cute.Tensor  # of one int32: how often the shift was raised
    range: Range


def make_rows(allowed: Range = FOLLOWING) -> Rows:
    floats = (cute.make_rmem_tensor((ROWS,), Float32) for _ in range(5))
    return Rows(*floats, cute.make_rmem_tensor((1,), Int32), allowed)


def reset(rows: Rows) -> None:
    rows.maximum.fill(-Float32.inf)
    rows.shift.fill(0.0)
    rows.raised.fill(0)
    rows.total.fill(0.0)


@cute.jit
def take_over(rows: Rows, other: Rows):
    """``rows`` = ``other``."""
    for to, value in (
        (rows.maximum, other.maximum),
        (rows.shift, other.shift),
        (rows.total, other.total),
        (rows.block_total, other.block_total),
        (rows.raised, other.raised),
    ):
        to.store(value.load())


@dsl_user_op
def _add_opaque(a: Float32, b: Float32, *, loc=None, ip=None) -> Float32:
    """a + b which the compiler neither reorders nor recomputes (it would recompute partial sums: 8 % at d64)."""
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Float32(x).ir_value(loc=loc, ip=ip) for x in (a, b)],
            "add.ftz.f32 $0, $1, $2;",
            "=f,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )


def _chains(combine: Callable, values: list, chains: int) -> list:
    """Reduces ``values`` to ``chains`` results that do not depend on each other."""
    results = list(values[:chains])
    for i, value in enumerate(values[chains:]):
        results[i % chains] = combine(results[i % chains], value)
    return results


@cute.jit
def _row_maximum(row, start):
    """The maximum of a row's scores in all its threads and of ``start`` (None: the first block)."""
    best = cute.arch.fmax(*_chains(cute.arch.fmax, [row[i] for i in range(cute.size(row))], 2))
    if const_expr(start is not None):
        best = cute.arch.fmax(best, start)
    return _over_row(cute.arch.fmax, best)


def _over_row(combine: Callable, value):
    """``value`` of the threads of a row combined, in each of them."""
    for step in range(2):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=1 << step))
    return value


@cute.jit
def _set_shift(rows: Rows, r: cutlass.Constexpr, softmax_scale_log2):
    """To the maximum; to 0 in a row that has seen no key, or only scores of -inf, since -inf - -inf would be NaN."""
    shift = rows.maximum[r] * softmax_scale_log2 - Float32(rows.range.start)
    rows.shift[r] = shift if rows.maximum[r] != -Float32.inf else Float32(0.0)


@cute.jit
def _exponentials(scores, rows: Rows, softmax_scale_log2):
    """scores = 2^(scores * scale - shift), and their sums into ``rows.block_total``."""
    for r in range_constexpr(ROWS):
        shift = rows.shift[r]
        row = scores[r, None]
        p = cute.make_rmem_tensor((cute.size(row),), Float32)
        for i in range_constexpr(cute.size(row)):
            p[i] = cute.math.exp2(row[i] * softmax_scale_log2 - shift, fastmath=True)
        row.store(p.load())
        even, odd = ([p[i] for i in range(start, cute.size(row), 2)] for start in (0, 1))
        (even_sum,), (odd_sum,) = (_chains(lambda a, b: a + b, part, 1) for part in (even, odd))
        rows.block_total[r] = _add_opaque(even_sum, odd_sum)


@cute.jit
def first_block(acc, rows: Rows, softmax_scale_log2):
    """Scores of the first block to P, in place; it is always taken for masked."""
    scores = wgmma.rows_columns(acc)
    for r in range_constexpr(ROWS):
        rows.maximum[r] = _row_maximum(scores[r, None], None)
        _set_shift(rows, r, softmax_scale_log2)
    _exponentials(scores, rows, softmax_scale_log2)
    for r in range_constexpr(ROWS):
        rows.total[r] = rows.block_total[r]


@cute.jit
def next_block(acc, rows: Rows, softmax_scale_log2):
    """Scores of a later block to P, in place; O must be scaled by ``rows.correction``, see :func:`rescale`.

    ``rows.total`` is corrected, and lacks ``rows.block_total``.
    """
    scores = wgmma.rows_columns(acc)
    for r in range_constexpr(ROWS):
        maximum = _row_maximum(scores[r, None], rows.maximum[r])
        drop = rows.maximum[r] - maximum if maximum != -Float32.inf else Float32(0.0)
        rows.correction[r] = cute.math.exp2(drop * softmax_scale_log2, fastmath=True)
        rows.maximum[r] = maximum
        rows.total[r] = rows.total[r] * rows.correction[r]
        _set_shift(rows, r, softmax_scale_log2)
    _exponentials(scores, rows, softmax_scale_log2)


@cute.jit
def next_block_lazy(acc, rows: Rows, softmax_scale_log2):
    """As :func:`next_block` for a block without masked scores; returns whether O must be scaled at all.

    The maximum stays as it was while no row of the warp outgrew it by 2^8.
    """
    scores = wgmma.rows_columns(acc)
    maximum = cute.make_rmem_tensor((ROWS,), Float32)
    for r in range_constexpr(ROWS):
        maximum[r] = _row_maximum(scores[r, None], rows.maximum[r])
    growth = cute.arch.fmax(*((maximum[r] - rows.maximum[r]) * softmax_scale_log2 for r in range(ROWS)))
    outgrown = cute.arch.vote_any_sync(growth > _LAZY_GROWTH)
    if outgrown:
        for r in range_constexpr(ROWS):
            drop = rows.maximum[r] - maximum[r] if maximum[r] != -Float32.inf else Float32(0.0)
            rows.correction[r] = cute.math.exp2(drop * softmax_scale_log2, fastmath=True)
            rows.maximum[r] = maximum[r]
            rows.total[r] = rows.total[r] * rows.correction[r]
            _set_shift(rows, r, softmax_scale_log2)
    _exponentials(scores, rows, softmax_scale_log2)
    return outgrown


@cute.jit
def freeze(rows: Rows):
    """Before the first :func:`next_block_frozen`: a row without a maximum has no shift to go on with, and fails."""
    for r in range_constexpr(ROWS):
        rows.total[r] = rows.total[r] if rows.maximum[r] != -Float32.inf else Float32.inf


@cute.jit
def next_block_frozen(acc, rows: Rows, softmax_scale_log2):
    """As :func:`next_block` for a block without masked scores, but the shift stays and O need not be scaled.

    What this gives is the same number as with a shift that follows the maximum, and as precise: P is rounded relative
    to itself.  Then :func:`raise_outgrown` must follow before P is used.
    """
    _exponentials(wgmma.rows_columns(acc), rows, softmax_scale_log2)


@cute.jit
def outgrown(rows: Rows):
    """Whether a sum of the latest block passed its limit in some row of the warp."""
    largest = cute.arch.fmax(*(rows.block_total[r] for r in range(ROWS)))
    return cute.arch.vote_any_sync(largest > 2.0**rows.range.limit)


@cute.jit
def raise_outgrown(acc, p_acc, rows: Rows):
    """:func:`raise_shift` where :func:`outgrown`."""
    if outgrown(rows):
        raise_shift(acc, p_acc, rows)


@cute.jit
def raise_shift(acc, p_acc, rows: Rows):
    """Raises the shift to the latest block's sums: O, the totals and that block's P, not yet used, become smaller.

    P only by a power of 2, which rounds nothing.  P was rounded already, where the sums were not; what that makes
    of the sum, up to 2^-9 where one key outweighs all others, goes into the shift and the rest follows, so that such a
    key gives its value and nothing else, as in an exact softmax.
    """
    out, p = wgmma.rows_columns(acc), wgmma.rows_columns(p_acc)
    for r in range_constexpr(ROWS):
        block = rows.block_total[r]
        (rounded,) = _chains(lambda a, b: a + b, _elements(_as_float(p[r, None])), 1)
        largest = _over_row(cute.arch.fmax, block)
        row_block, row_rounded = (_over_row(lambda a, b: a + b, share) for share in (block, rounded))
        steps, gain = Float32(0.0), Float32(1.0)
        if largest > 2.0**rows.range.limit:
            steps = Float32(Int32(cute.math.log2(largest, fastmath=True)) - rows.range.fresh)
            gain = row_rounded * cute.arch.rcp_approx(row_block)
        else:
            rounded = block
        factor = cute.math.exp2(-steps, fastmath=True)
        rows.shift[r] = rows.shift[r] + (steps - cute.math.log2(gain, fastmath=True))
        total = (rows.total[r] - block) * (factor * gain) + rounded * factor
        rows.total[r] = total if largest < 2.0**rows.range.overflow else Float32.inf
        out[r, None].store(out[r, None].load() * (factor * gain))
        p[r, None].store((p[r, None].load().to(Float32) * factor).to(p.element_type))
    rows.raised[0] = rows.raised[0] + 1


def _as_float(row) -> cute.Tensor:
    values = cute.make_rmem_tensor((cute.size(row),), Float32)
    values.store(row.load().to(Float32))
    return values


@cute.jit
def failed(acc, rows: Rows):
    """Whether P or O overflowed in some row of the warp."""
    out = wgmma.rows_columns(acc)
    largest = cute.arch.fmax(*(rows.total[r] for r in range(ROWS)), nan=True)
    lost = cutlass.Boolean(False)
    # else P stayed below the limit, and O is no nearer to overflow than with a shift that follows the maximum
    if cute.arch.vote_any_sync(not largest <= 2.0**rows.range.limit or rows.raised[0] > 0):
        lost = not largest < Float32.inf
        for r in range_constexpr(ROWS):
            (size,) = _chains(lambda a, b: a + b, [cute.arch.fmax(x, -x, nan=True) for x in _elements(out[r, None])], 1)
            lost = lost or not size < Float32.inf
        lost = cute.arch.vote_any_sync(lost)
    return lost


def _elements(row) -> list:
    return [row[i] for i in range(cute.size(row))]


def add_block_total(rows: Rows) -> None:
    for r in range(ROWS):
        rows.total[r] = rows.total[r] + rows.block_total[r]


@cute.jit
def pin(rows: Rows, word):
    """Keeps the exponentials above what follows.

    ptxas moves the wait for a wgmma up over arithmetic, but not over a store: this one never happens (a sum of
    exponentials is not negative), but depends on all of them.
    """
    if rows.block_total[0] + rows.block_total[1] < 0.0:
        word[0] = Int32(0)


@cute.jit
def rescale(acc, rows: Rows):
    """O of the earlier blocks to the new maximum."""
    out = wgmma.rows_columns(acc)
    for r in range_constexpr(ROWS):
        out[r, None].store(out[r, None].load() * rows.correction[r])


@cute.jit
def finish(acc, rows: Rows):
    """Divides O by the sums; returns LSE (natural log) of the thread's rows.  A row without keys: O 0, LSE -inf."""
    out = wgmma.rows_columns(acc)
    lse = cute.make_rmem_tensor((ROWS,), Float32)
    for r in range_constexpr(ROWS):
        total = cute.arch.warp_reduction_sum(rows.total[r], threads_in_group=_THREADS_OF_A_ROW)
        inverse = cute.arch.rcp_approx(total) if total > 0.0 else Float32(0.0)
        out[r, None].store(out[r, None].load() * inverse)
        lse[r] = (rows.shift[r] + cute.math.log2(total, fastmath=True)) * _LN_2
    return lse
