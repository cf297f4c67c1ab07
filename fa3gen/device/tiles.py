"""Layouts of Q, K and V tiles in shared memory, their tensor maps and multiplies; how O is stored."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import Float32, Int32, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.tensor_utils import LayoutEnum

from fa3gen.device import wgmma

#: Query rows of a consumer warpgroup, which has Q boxes of its own.
WARPGROUP_ROWS = 64


@dataclass(frozen=True)
class Layouts:
    """Swizzled layouts, the stage last: q (64, head_dim), k (tile_n, head_dim), v (head_dim_v, tile_n).

    The swizzle spans 128 bytes, or 64 where head_dim is an odd multiple of 32.
    """

    q: cute.ComposedLayout
    k: cute.ComposedLayout
    v: cute.ComposedLayout


def layouts(element, tile_n: int, head_dim: int, head_dim_v: int, q_boxes: int, stages: int) -> Layouts:
    qk, pv = (WARPGROUP_ROWS, tile_n, head_dim), (WARPGROUP_ROWS, head_dim_v, tile_n)
    return Layouts(
        q=sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, qk, element, q_boxes),
        k=sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, qk, element, stages),
        v=sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, pv, element, stages),
    )


def multiply_qk(element, keys: int) -> cute.TiledMma:
    """S (64, keys) = Q K^T, both from shared memory."""
    k_major, one = OperandMajorMode.K, (1, 1, 1)
    return sm90.make_trivial_tiled_mma(element, element, k_major, k_major, Float32, one, (WARPGROUP_ROWS, keys))


def multiply_pv(element, head_dim: int) -> cute.TiledMma:
    """O (64, head_dim) = P V: P from registers, V as it lies (head_dim contiguous)."""
    k_major, mn_major, one = OperandMajorMode.K, OperandMajorMode.MN, (1, 1, 1)
    shape, registers = (WARPGROUP_ROWS, head_dim), warpgroup.OperandSource.RMEM
    return sm90.make_trivial_tiled_mma(element, element, k_major, mn_major, Float32, one, shape, a_source=registers)


def tensor_maps(q, k, v, boxes: Layouts) -> tuple[cute.CopyAtom, ...]:
    """TMA atoms that load from dense (batch, seqlen, heads, head_dim) tensors."""
    rows = (1, 3, 2, 0)  # (seqlen, head_dim, heads, batch)
    columns = (3, 1, 2, 0)
    atoms = []
    for tensor, order, layout in ((q, rows, boxes.q), (k, rows, boxes.k), (v, columns, boxes.v)):
        view = cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=list(order)))
        box = cute.select(layout, mode=[0, 1])
        load = cpasync.CopyBulkTensorTileG2SOp()
        atom, _ = cpasync.make_tiled_tma_atom(load, view, box, cute.product_each(box.outer.shape))
        atoms.append(atom)
    return tuple(atoms)


def coordinates(head_dim: int, seqlen, heads) -> cute.Tensor:
    """Coordinates in a tensor map as (seqlen, head_dim, heads, batch).

    The extents of heads and batch bound nothing, but must not be constants, which would drop the coordinate.
    """
    identity = cute.make_identity_tensor((head_dim, seqlen, heads, heads))
    return cute.make_tensor(identity.iterator, cute.select(identity.layout, mode=[1, 0, 2, 3]))


def coordinates_transposed(head_dim: int, seqlen, heads) -> cute.Tensor:
    """As :func:`coordinates`, (head_dim, seqlen, heads, batch)."""
    return cute.make_identity_tensor((head_dim, seqlen, heads, heads))


def partition(tma: cute.CopyAtom, smem: cute.Tensor, tiles: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """(shared, global) views for ``tma``, whose first mode is the whole box."""
    return cpasync.tma_partition(
        tma, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(tiles, 0, 2)
    )


@cute.jit
def store_out(acc: cute.Tensor, thread, to: cute.Tensor, rows):
    """Writes a warpgroup's O, converted, to ``to`` (64, head_dim), the first ``rows`` rows of it.

    A row's 4 threads exchange their pairs of columns, so that each writes 16 bytes: 64 contiguous bytes a row, whole
    sectors.  Straight from registers, O needs no shared memory, and Q's is free as soon as the last QK has read it.
    """
    element = to.element_type
    rounded = cute.make_rmem_tensor_like(acc, element)
    wgmma.convert(acc, rounded)
    # a thread's pairs of columns: of its first row, of the one 8 below, of the first row 8 columns on, ...
    pairs = cute.recast_tensor(cute.make_tensor(rounded.iterator, cute.make_layout(cute.size(rounded))), Int32)
    lane = thread % 4
    first_row = thread // 32 * 16 + thread % 32 // 4
    chunks = cute.size(acc) // 16  # of 32 columns
    for r in range_constexpr(2):
        row = first_row + 8 * r
        eights = cute.make_rmem_tensor((4, chunks), Int32)
        for chunk in range_constexpr(chunks):
            for i, pair in enumerate(_transposed([pairs[8 * chunk + 2 * i + r] for i in range(4)], lane)):
                eights[i, chunk] = pair
        if row < rows:
            for chunk in range_constexpr(chunks):
                at = to.iterator + (row * to.stride[0] + (32 * chunk + 8 * lane))
                aligned = cute.make_ptr(element, at.toint(), cute.AddressSpace.gmem, assumed_align=16)
                eight = cute.recast_tensor(eights[None, chunk], element)
                cute.autovec_copy(eight, cute.make_tensor(aligned, cute.make_layout((8,))))


def _transposed(row: list, lane) -> list:
    """Column ``lane`` of the 4 x 4 matrix whose row ``lane`` is ``row``, where 4 neighbouring lanes have a row each."""
    for step in (1, 2):
        high = (lane & step) != 0
        exchanged = list(row)
        for i in range(4):
            if i & step == 0:
                low_i, high_i = i, i | step
                sent = cutlass.select_(high, row[low_i], row[high_i])
                received = cute.arch.shuffle_sync_bfly(sent, offset=step)
                exchanged[low_i] = cutlass.select_(high, received, row[low_i])
                exchanged[high_i] = cutlass.select_(high, row[high_i], received)
        row = exchanged
    return row
