"""The load warp tells the consumers which tile to work on: slots of shared memory, guarded by mbarriers.

Message n is kept until the consumers have done what it says, and its slot then serves message n + SLOTS.  So the load
warp, when it has that slot, knows that tile n is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import range_constexpr

#: A power of 2.
SLOTS = 4
BARRIERS = 2 * SLOTS
WORDS = 4 * SLOTS

#: Instead of a tile: there is none, and none will come.
END = -1
#: There is none now: consumers finish what they have begun, and look again.
PAUSE = -2


@dataclass(frozen=True)
class Messages:
    """``words`` are int32 in shared memory, 4 a slot; ``full`` and ``empty`` point at an mbarrier a slot.

    A message is a tile's number, with :data:`index.AGAIN` added where it is computed again, and where the tile lies:
    m_block, head and batch.  Or it is :data:`END` or :data:`PAUSE`.
    """

    words: cute.Tensor
    full: cute.Pointer
    empty: cute.Pointer


def make(words: cute.Pointer, barriers: cute.Pointer) -> Messages:
    return Messages(cute.make_tensor(words, cute.make_layout((4, SLOTS))), barriers, barriers + SLOTS)


@cute.jit
def init(messages: Messages, consumers: cutlass.Constexpr):
    """Sets up the barriers for so many receiving warps.  One thread calls it."""
    for i in range_constexpr(SLOTS):
        cute.arch.mbarrier_init(messages.full + i, 1)
        cute.arch.mbarrier_init(messages.empty + i, consumers)


def slot(number):
    """Where message ``number`` lies, counted from 0."""
    return number & (SLOTS - 1)


def _phase(number):
    return (number // SLOTS) & 1


def acquire(messages: Messages, number) -> None:
    """Waits for message ``number``'s slot, hence until tile ``number - SLOTS`` is done; the load warp calls it."""
    cute.arch.mbarrier_wait(messages.empty + slot(number), _phase(number) ^ 1)


@cute.jit
def send(messages: Messages, number, tile, m_block, head, batch):
    """Sends message ``number``, whose slot the load warp has acquired."""
    with cute.arch.elect_one():
        messages.words[0, slot(number)] = tile
        messages.words[1, slot(number)] = m_block
        messages.words[2, slot(number)] = head
        messages.words[3, slot(number)] = batch
        cute.arch.mbarrier_arrive(messages.full + slot(number))


@cute.jit
def receive(messages: Messages, number):
    """Waits for message ``number``; consumer warps call it, and :func:`done` when they have done what it says."""
    cute.arch.mbarrier_wait(messages.full + slot(number), _phase(number))
    return [messages.words[i, slot(number)] for i in range(4)]


@cute.jit
def done(messages: Messages, number):
    """Gives message ``number`` back; a consumer warp calls it, with what it wrote for that tile behind it."""
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(messages.empty + slot(number))
