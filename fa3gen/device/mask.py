"""Which scores count."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Float32, range_constexpr

from fa3gen.device import wgmma


@cute.jit
def below(acc, coords, r: cutlass.Constexpr, limit):
    """Row ``r`` of a thread's scores: -inf where the column within the tile is not below ``limit``.

    ``coords`` are the (row, column) of the tile's elements; the columns are the same in both rows.
    """
    scores, where = wgmma.rows_columns(acc), wgmma.rows_columns(coords)
    for i in range_constexpr(cute.size(scores, mode=[1])):
        scores[r, i] = scores[r, i] if where[0, i][1] < limit else -Float32.inf
