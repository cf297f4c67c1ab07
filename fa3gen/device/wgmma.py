"""Warpgroup matrix multiplies and the views of their register fragments.

A 64 x n accumulator has the shape ``((2, 2, n / 8), 1, 1)``: in each group of 8 columns a thread holds 2 neighbours of
one row and 2 of the row 8 below.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, const_expr, range_constexpr
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op


@cute.jit
def issue(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, accumulate: cutlass.Constexpr):
    """Issues acc (+)= a b as one commit group, which is not waited for."""
    # mma.set rebinds state inside the object, which must not leak out of a dynamic loop: work on a copy
    mma = cutlass.new_from_mlir_values(mma, cutlass.extract_mlir_values(mma))
    warpgroup.fence()
    mma.set(warpgroup.Field.ACCUMULATE, const_expr(accumulate))
    for k in range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k], acc)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@dsl_user_op
def all_agree(condition: Boolean, barrier_id: Int32, *, loc=None, ip=None) -> Boolean:
    """Whether ``condition`` holds in all threads of a warpgroup, which wait for each other at a barrier of its own."""
    agreed = llvm.inline_asm(
        T.i32(),
        [Int32(x).ir_value(loc=loc, ip=ip) for x in (condition, barrier_id)],
        "{.reg .pred p; setp.ne.s32 p, $1, 0; barrier.cta.red.and.pred p, $2, 128, p; selp.s32 $0, 1, 0, p;}",
        "=r,r,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return Int32(agreed) != 0


def rows_columns(acc: cute.Tensor) -> cute.Tensor:
    """An accumulator as a (2 rows, n / 4 columns) view."""
    shape, stride = acc.layout.shape, acc.layout.stride
    return cute.make_tensor(
        acc.iterator,
        cute.make_layout(
            ((shape[0][1], shape[1]), (shape[0][0], shape[0][2], shape[2])),
            stride=((stride[0][1], stride[1]), (stride[0][0], stride[0][2], stride[2])),
        ),
    )


#: Elements converted at once.
_CONVERTED = 16


def convert(acc: cute.Tensor, into: cute.Tensor) -> None:
    """``into`` = ``acc`` in its own type.

    In pieces: a vector whose length is no power of 2 would be converted one element at a time.
    """
    for start in range(0, cute.size(acc), _CONVERTED):
        piece = cute.make_layout(min(_CONVERTED, cute.size(acc) - start))
        values = cute.make_tensor(acc.iterator + start, piece).load()
        cute.make_tensor(into.iterator + start, piece).store(values.to(into.element_type))


def as_operand_a(p: cute.Tensor) -> cute.Tensor:
    """16-bit values in an accumulator's order as the A operand of the next multiply: no register moves."""
    layout = cute.logical_divide(p.layout, ((None, None, 2), None, None))
    s, d = layout.shape, layout.stride
    return cute.make_tensor(
        p.iterator,
        cute.make_layout(
            ((s[0][0], s[0][1], s[0][2][0]), s[1], (s[0][2][1], s[2])),
            stride=((d[0][0], d[0][1], d[0][2][0]), d[1], (d[0][2][1], d[2])),
        ),
    )
