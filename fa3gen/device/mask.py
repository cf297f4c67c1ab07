"""Which scores count."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, range_constexpr

from fa3gen.device import index, softmax, wgmma


@cute.jit
def _keep(scores, columns, limit):
    """-inf where the column is not below ``limit``."""
    for i in range_constexpr(cute.size(scores)):
        scores[i] = scores[i] if columns[i][1] < limit else -Float32.inf


@cute.jit
def keys(acc, coords, n_block, tile_n: cutlass.Constexpr, seqlen_k):
    """Masks the keys past the sequence's end in block ``n_block``; ``coords`` are those of the tile's elements."""
    scores, where = wgmma.rows_columns(acc), wgmma.rows_columns(coords)
    for r in range_constexpr(softmax.ROWS):
        _keep(scores[r, None], where[0, None], seqlen_k - n_block * tile_n)


@cute.jit
def causal(acc, coords, n_block, tile_n: cutlass.Constexpr, row, seqlen_q, seqlen_k):
    """As :func:`keys`, and masks the keys after each row; the warpgroup's first is ``row``."""
    scores, where = wgmma.rows_columns(acc), wgmma.rows_columns(coords)
    for r in range_constexpr(softmax.ROWS):
        visible = index.visible_keys(row + where[r, 0][0], seqlen_q, seqlen_k)
        _keep(scores[r, None], where[0, None], visible - n_block * tile_n)
