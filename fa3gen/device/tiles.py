"""Layouts of Q, K, V and O tiles in shared memory, their tensor maps and multiplies."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup
from cutlass.tensor_utils import LayoutEnum

#: Query rows of a consumer warpgroup, which has Q and O boxes of its own.
WARPGROUP_ROWS = 64


@dataclass(frozen=True)
class Layouts:
    """Swizzled layouts, the stage last: q and out (64, head_dim), k (tile_n, head_dim), v (head_dim, tile_n)."""

    q: cute.ComposedLayout
    k: cute.ComposedLayout
    v: cute.ComposedLayout
    out: cute.ComposedLayout


def layouts(element, tile_n: int, head_dim: int, q_boxes: int, stages: int) -> Layouts:
    qk, pv = (WARPGROUP_ROWS, tile_n, head_dim), (WARPGROUP_ROWS, head_dim, tile_n)
    return Layouts(
        q=sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, qk, element, q_boxes),
        k=sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, qk, element, stages),
        v=sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, pv, element, stages),
        out=sm90.make_smem_layout_epi(element, LayoutEnum.ROW_MAJOR, (WARPGROUP_ROWS, head_dim), q_boxes),
    )


def multiplies(element, tile_n: int, head_dim: int) -> tuple[cute.TiledMma, cute.TiledMma]:
    """S = Q K^T (both from shared memory) and O = P V (P from registers, V as it lies: head_dim contiguous)."""
    k_major, mn_major = OperandMajorMode.K, OperandMajorMode.MN
    make, one = sm90.make_trivial_tiled_mma, (1, 1, 1)
    qk = make(element, element, k_major, k_major, Float32, one, (WARPGROUP_ROWS, tile_n))
    registers = warpgroup.OperandSource.RMEM
    pv = make(element, element, k_major, mn_major, Float32, one, (WARPGROUP_ROWS, head_dim), a_source=registers)
    return qk, pv


def tensor_maps(q, k, v, out, boxes: Layouts, multicast: bool = False) -> tuple[cute.CopyAtom, ...]:
    """TMA atoms of dense (batch, seqlen, heads, head_dim) tensors: loads of q, k and v, store of out.

    With ``multicast``, k and v are loaded for every CTA of a cluster.
    """
    load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_shared = cpasync.CopyBulkTensorTileG2SMulticastOp() if multicast else load
    rows = (1, 3, 2, 0)  # (seqlen, head_dim, heads, batch)
    columns = (3, 1, 2, 0)
    atoms = []
    for op, tensor, order, layout in (
        (load, q, rows, boxes.q),
        (load_shared, k, rows, boxes.k),
        (load_shared, v, columns, boxes.v),
        (store, out, rows, boxes.out),
    ):
        view = cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=list(order)))
        box = cute.select(layout, mode=[0, 1])
        atom, _ = cpasync.make_tiled_tma_atom(op, view, box, cute.product_each(box.outer.shape))
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


def share(tiles: cute.Tensor, box: tuple[int, int], number) -> cute.Tensor:
    """Box ``number`` of each tile (the first two modes), as tiles."""
    return cute.group_modes(cute.flat_divide(tiles, box), 2, 4)[None, None, number, None]


def partition(tma: cute.CopyAtom, smem: cute.Tensor, tiles: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """(shared, global) views for ``tma``, whose first mode is the whole box."""
    return cpasync.tma_partition(
        tma, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(tiles, 0, 2)
    )


def stage_out(acc: cute.Tensor, mma: cute.TiledMma, thread, element, smem: cute.Tensor) -> None:
    """A warpgroup's O, converted, into its box of shared memory, visible to TMA."""
    rounded = cute.make_rmem_tensor_like(acc, element)
    rounded.store(acc.load().to(element))
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4), element)
    copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
    cute.copy(atom, copy.retile(rounded), copy.partition_D(smem))
    cute.arch.fence_view_async_shared()
