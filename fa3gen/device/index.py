"""Which tile a CTA works on and which keys its rows see.

Arithmetic without branches that serves Python integers and the DSL's alike: kernels trace it, tests enumerate it.
All quantities are non-negative unless said.
"""

from __future__ import annotations

from typing import Any

Int = Any  # int, or the DSL's Int32


def minimum(a: Int, b: Int) -> Int:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    import cutlass

    return cutlass.min(a, b)


def maximum(a: Int, b: Int) -> Int:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    import cutlass

    return cutlass.max(a, b)


def quotient(a: Int, b: Int) -> Int:
    """``a // b``; as an unsigned division, which is shorter in SASS."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    from cutlass import Int32, Uint32

    return Int32(Uint32(a) // Uint32(b))


def ceil_div(a: Int, b: Int) -> Int:
    return quotient(a + b - 1, b)


#: Added to a tile's number in messages: compute it again.  So a launch has fewer tiles.
AGAIN = 1 << 30


def tile_number(message: Int) -> Int:
    """The tile of a message that is not -1."""
    return message & (AGAIN - 1)


def later_tile(number: Int, num_ctas: Int, num_tiles: Int) -> Int:
    """Tile ``number + num_ctas``, where CTAs begin with tiles 0 .. num_ctas - 1; -1 past the last."""
    later = number + num_ctas
    # -1 where later >= num_tiles, without a branch: the sign bit of later - num_tiles, spread, and inverted
    return later | ~((later - num_tiles) >> 31)


def head_by_head(tile: Int, m_tiles: Int, heads_q: Int) -> tuple[Int, Int, Int]:
    """(m_block, head, batch) of a tile where all take equally long: K and V of a head serve neighbouring tiles."""
    pair = quotient(tile, m_tiles)
    batch = quotient(pair, heads_q)
    return tile - pair * m_tiles, pair - batch * heads_q, batch


def longest_first(tile: Int, m_tiles: Int, num_tiles: Int, heads_q: Int, head_section: Int) -> tuple[Int, Int, Int]:
    """(m_block, head, batch) of a tile where later row tiles take longer (causal).

    (head, batch) pairs are taken in sections of ``head_section``, whose K and V fit L2; in a section the last row tile
    of every pair comes first, so that short tiles fill the gaps at the end.  The last section also has the pairs that
    are left over: of their own they would be long tiles at the end, for a few of the SMs (with 24 row tiles and 21
    pairs, of which 1 was left, 28 % of the time).
    """
    all_pairs = quotient(num_tiles, m_tiles)
    last = maximum(quotient(all_pairs, head_section), 1) - 1
    section = minimum(quotient(tile, head_section * m_tiles), last)
    in_section = tile - section * head_section * m_tiles
    # all that are left where it is the last: section < last is a sign bit, spread
    pairs = minimum(all_pairs - section * head_section, head_section + (all_pairs & ~((section - last) >> 31)))
    row = quotient(in_section, pairs)
    pair = section * head_section + in_section - row * pairs
    batch = quotient(pair, heads_q)
    return m_tiles - 1 - row, pair - batch * heads_q, batch


def visible_keys(row: Int, seqlen_q: Int, seqlen_k: Int) -> Int:
    """Keys that query ``row`` sees under the causal mask, aligned bottom right: keys 0 .. visible_keys - 1."""
    return minimum(maximum(row + 1 + (seqlen_k - seqlen_q), 0), seqlen_k)
