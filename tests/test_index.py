"""Index arithmetic of the kernels against brute force."""

from __future__ import annotations

import heapq
from itertools import product

import pytest

from fa3gen.device import index


def test_ceil_div() -> None:
    assert [index.ceil_div(a, 4) for a in (0, 1, 4, 5)] == [0, 1, 1, 2]


@pytest.mark.parametrize("seqlen_k", range(8))
@pytest.mark.parametrize("seqlen_q", range(1, 8))
def test_visible_keys_is_the_causal_mask_aligned_bottom_right(seqlen_q: int, seqlen_k: int) -> None:
    for row in range(seqlen_q):
        seen = [key for key in range(seqlen_k) if key <= row + seqlen_k - seqlen_q]
        assert index.visible_keys(row, seqlen_q, seqlen_k) == len(seen)
        assert seen == list(range(len(seen)))


@pytest.mark.parametrize(("m_tiles", "heads", "batch"), [*product((1, 2, 5), (1, 3, 4), (1, 2, 3))])
def test_every_tile_is_visited_once(m_tiles: int, heads: int, batch: int) -> None:
    num_tiles = m_tiles * heads * batch
    everything = sorted(product(range(m_tiles), range(heads), range(batch)))
    assert sorted(index.head_by_head(t, m_tiles, heads) for t in range(num_tiles)) == everything
    for section in range(1, heads * batch + 1):
        order = [index.longest_first(t, m_tiles, num_tiles, heads, section) for t in range(num_tiles)]
        assert sorted(order) == everything


def test_longest_first_takes_the_last_rows_of_a_section_first() -> None:
    order = [index.longest_first(t, 3, 12, 4, 2) for t in range(12)]
    assert [m for m, _, _ in order] == [2, 2, 1, 1, 0, 0] * 2
    assert [h for _, h, _ in order] == [0, 1] * 3 + [2, 3] * 3


def test_what_is_left_over_goes_into_the_last_section() -> None:
    order = [index.longest_first(t, 3, 15, 5, 2) for t in range(15)]
    assert [m for m, _, _ in order] == [2, 2, 1, 1, 0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert [h for _, h, _ in order] == [0, 1] * 3 + [2, 3, 4] * 3


@pytest.mark.parametrize(("m_tiles", "pairs", "section"), [(24, 21, 10), (61, 21, 4), (31, 21, 16), (40, 72, 26)])
def test_no_long_tile_is_left_for_the_end(m_tiles: int, pairs: int, section: int) -> None:
    """A free SM takes the next tile, whose time is that of its keys: all end at nearly the same time."""
    ends = [0] * 132
    for tile in range(m_tiles * pairs):
        m_block, _, _ = index.longest_first(tile, m_tiles, m_tiles * pairs, pairs, section)
        heapq.heapreplace(ends, ends[0] + m_block + 1)
    assert max(ends) < 1.06 * sum(ends) / len(ends)


def test_later_tile() -> None:
    assert [index.later_tile(tile, 4, 10) for tile in range(10)] == [4, 5, 6, 7, 8, 9, -1, -1, -1, -1]


@pytest.mark.parametrize("tile", [0, 1, 12345, index.AGAIN - 1])
def test_a_message_says_which_tile_and_whether_again(tile: int) -> None:
    again = tile + index.AGAIN
    assert [index.tile_number(message) for message in (tile, again)] == [tile, tile]
    assert tile < index.AGAIN <= again < 1 << 31


@pytest.mark.parametrize("num_sms", range(1, 34))
@pytest.mark.parametrize("num_tiles", [1, 2, 7, 29, 32])
def test_persistent_ctas_take_each_tile_once(num_tiles: int, num_sms: int) -> None:
    """scheduler_persistent.draw."""
    grid, done = min(num_sms, num_tiles), []
    for cta in range(grid):
        tile = cta
        while tile >= 0:
            done.append(tile)
            tile = index.later_tile(tile, grid, num_tiles)
    assert sorted(done) == list(range(num_tiles))


@pytest.mark.parametrize("num_sms", range(1, 34))
@pytest.mark.parametrize("num_tiles", [1, 2, 7, 29, 32])
def test_drawing_gives_each_tile_once_and_leaves_the_counter_at_zero(num_tiles: int, num_sms: int) -> None:
    """scheduler_dynamic.draw, with CTAs that take turns in an uneven order."""
    grid = min(num_sms, num_tiles)
    counter, done = 0, []
    working = dict(enumerate(range(grid)))  # CTA -> tile
    turn = 0
    while working:
        cta = sorted(working)[(turn * turn + turn // 3) % len(working)]
        turn += 1
        done.append(working[cta])
        drawn, counter = counter, counter + 1
        if drawn == num_tiles - 1:
            counter = 0
        working[cta] = index.later_tile(drawn, grid, num_tiles)
        if working[cta] < 0:
            del working[cta]
    assert sorted(done) == list(range(num_tiles))
    assert counter == 0
