"""The barriers of a CTA as the forward kernel uses them, with threads that run in a random order.

Each role of the kernel is written down again as a generator that yields what it waits for.  A warpgroup has two warps
here: the one that hands stages back, and another.  Loads arrive later and in any order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from fa3gen.device import index
from fa3gen.device.messages import END, PAUSE, SLOTS

Condition = Callable[[], bool]
Thread = Iterator[Condition]

ROWS = 64  # of a warpgroup
WARPS = 2


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all that was announced is there."""

    arrivals: int
    pending: int = field(init=False)
    expected: int = 0
    phases: int = 0  # that have ended
    arrived: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, who: object = None, expect: int = 0) -> None:
        assert self.pending > 0, "an arrival too many in a phase"
        assert who not in self.arrived, "an arrival of the next phase"
        self.arrived.add(who)
        self.pending -= 1
        self.add(-expect)

    def add(self, arrived: int) -> None:
        self.expected -= arrived
        if self.pending == 0 and self.expected == 0:
            self.pending, self.phases, self.arrived = self.arrivals, self.phases + 1, set()

    def ended(self, phase: int) -> Condition:
        """Waits by parity, as the hardware does, and checks that this is not taken for another phase."""

        def ready() -> bool:
            passed = (self.phases - 1) % 2 == phase % 2
            assert not passed or self.phases - 1 == phase, "a phase was missed"
            return passed

        return ready


class Meeting:
    """A barrier of a warpgroup's warps, at which they may agree."""

    def __init__(self) -> None:
        self.waiting: list[bool] = []
        self.number = 0
        self.agreed = False

    def meet(self, condition: bool = True) -> Condition:
        number = self.number
        self.waiting.append(condition)
        if len(self.waiting) == WARPS:
            self.number, self.agreed, self.waiting = number + 1, all(self.waiting), []
        return lambda: self.number > number


class Ring:
    """Stages: barriers, what they hold, and who has still to read it."""

    def __init__(self, stages: int, consumers: int) -> None:
        self.stages, self.consumers = stages, consumers
        self.full = [Barrier(1) for _ in range(stages)]
        self.empty = [Barrier(consumers) for _ in range(stages)]
        self.holds: list[object] = [None] * stages
        self.readers = [0] * stages

    def free(self, use: int) -> Condition:
        lap, stage = divmod(use, self.stages)
        return self.empty[stage].ended(lap - 1)

    def filled(self, use: int) -> Condition:
        lap, stage = divmod(use, self.stages)
        return self.full[stage].ended(lap)

    def put(self, stage: int, what: object) -> None:
        """A load arrives."""
        assert self.readers[stage] == 0, "overwritten while it is read"
        self.holds[stage], self.readers[stage] = what, self.consumers
        self.full[stage].add(1)

    def read(self, use: int, what: object) -> None:
        assert self.holds[use % self.stages] == what

    def release(self, use: int, who: int) -> None:
        stage = use % self.stages
        self.readers[stage] -= 1
        self.empty[stage].arrive(who)


@dataclass(frozen=True)
class Problem:
    causal: bool
    seqlen_q: int
    seqlen_k: int
    heads: int
    tile_n: int
    warpgroups: int
    stages: int
    q_stages: int
    dynamic: bool
    ctas: int

    @property
    def tile_m(self) -> int:
        return ROWS * self.warpgroups

    @property
    def m_tiles(self) -> int:
        return int(index.ceil_div(self.seqlen_q, self.tile_m))

    @property
    def num_tiles(self) -> int:
        return self.m_tiles * self.heads

    def m_block(self, message: int) -> int:
        tile = index.tile_number(message)
        if self.causal:
            return int(index.longest_first(tile, self.m_tiles, self.num_tiles, self.heads, 2)[0])
        return int(index.head_by_head(tile, self.m_tiles, self.heads)[0])

    def blocks(self, first: int, count: int) -> int:
        last = min(first + count, self.seqlen_q) - 1
        keys = index.visible_keys(last, self.seqlen_q, self.seqlen_k) if self.causal else self.seqlen_k
        return int(index.ceil_div(keys, self.tile_n)) if last >= first else 0

    def loaded(self, message: int) -> int:
        return self.blocks(self.m_block(message) * self.tile_m, self.tile_m)

    def seen(self, message: int, wg: int) -> int:
        return self.blocks(self.m_block(message) * self.tile_m + wg * ROWS, ROWS)


def _at_once() -> bool:
    return True


class Cta:
    def __init__(self, problem: Problem, number: int, world: World) -> None:
        self.problem, self.number, self.world = problem, number, world
        self.q = Ring(problem.q_stages, problem.warpgroups)
        self.k, self.v = (Ring(problem.stages, problem.warpgroups) for _ in range(2))
        self.words, self.word_full = [END] * SLOTS, [Barrier(1) for _ in range(SLOTS)]
        self.word_empty = [Barrier(problem.warpgroups * WARPS) for _ in range(SLOTS)]
        self.failed = [-1] * SLOTS

    def threads(self) -> Iterator[Thread]:
        yield self.load()
        for wg in range(self.problem.warpgroups):
            meeting = Meeting()
            yield from (Consumer(self, wg, warp, meeting).run() for warp in range(WARPS))

    def load(self) -> Thread:
        used = {self.q: 0, self.k: 0, self.v: 0}
        tile = drawn = self.number
        count = pauses = 0

        def put(ring: Ring, what: object, empty: bool = False) -> Thread:
            stage = used[ring] % ring.stages
            yield ring.free(used[ring])
            used[ring] += 1
            ring.full[stage].arrive(expect=1)
            if empty:
                ring.put(stage, what)
            else:
                self.world.later(partial(ring.put, stage, what))

        last_v: object = None
        while tile != END:
            self.send(count, tile)
            n_blocks = self.problem.loaded(tile) if tile >= 0 else 0
            if n_blocks > 0:
                yield from put(self.k, (count, n_blocks - 1))
            if last_v is not None:
                yield from put(self.v, last_v)
            if tile >= 0:
                yield from put(self.q, count, empty=n_blocks == 0)
            for i in range(1, n_blocks):
                yield from put(self.k, (count, n_blocks - 1 - i))
                yield from put(self.v, (count, n_blocks - i))
            last_v = (count, 0) if n_blocks > 0 else None
            if last_v is not None and self.v.free(used[self.v])():
                yield from put(self.v, last_v)
                last_v = None
            count += 1
            yield self.word_empty[count % SLOTS].ended(count // SLOTS - 1)
            failed, self.failed[count % SLOTS] = self.failed[count % SLOTS], -1
            tile = failed
            if tile >= 0:
                tile += index.AGAIN
            elif drawn >= 0:
                tile = drawn = self.world.draw(drawn)
            pauses = 0 if tile >= 0 else pauses + 1
            if tile < 0:
                tile = PAUSE if pauses < SLOTS else END
        self.send(count, END)

    def send(self, count: int, tile: int) -> None:
        self.words[count % SLOTS] = tile
        self.word_full[count % SLOTS].arrive()


class Consumer:
    """A warp of a warpgroup; ``k_used`` and ``v_used`` count the stages that have been handed back."""

    def __init__(self, cta: Cta, wg: int, warp: int, meeting: Meeting) -> None:
        self.cta, self.problem, self.wg, self.warp, self.meeting = cta, cta.problem, wg, warp, meeting
        self.most_others = self.problem.stages - 1 if cta.world.guarded else 99
        self.k_used = self.v_used = 0

    def receive(self, count: int) -> Condition:
        return self.cta.word_full[count % SLOTS].ended(count // SLOTS)

    def done(self, count: int) -> None:
        self.cta.word_empty[count % SLOTS].arrive((self.wg, self.warp))

    def release(self, ring: Ring, use: int) -> None:
        if self.warp == 0:
            ring.release(use, self.wg)

    def multiply(self, ring: Ring, use: int, what: object) -> Thread:
        """All warps of the warpgroup begin it together."""
        ring.read(use, what)
        yield self.meeting.meet()

    def key(self, count: int, n_block: int) -> Thread:
        """QK of a block."""
        yield self.cta.k.filled(self.k_used)
        yield from self.multiply(self.cta.k, self.k_used, (count, n_block))
        self.release(self.cta.k, self.k_used)
        self.k_used += 1

    def value(self, count: int, n_block: int, beside: Thread | None = None) -> Thread:
        """PV of a block, and ``beside``, which hands its own blocks back before."""
        used = self.v_used
        self.v_used += 1
        yield from beside or ()
        yield self.cta.v.filled(used)
        yield from self.multiply(self.cta.v, used, (count, n_block))
        self.release(self.cta.v, used)

    def hand_back(self, count: int, n_blocks: int, others: int) -> Thread:
        for i in range(others):
            block = (count, n_blocks + others - 1 - i)
            yield self.cta.k.filled(self.k_used)
            yield self.cta.v.filled(self.v_used)
            self.cta.k.read(self.k_used, block)
            self.cta.v.read(self.v_used, block)
            yield self.meeting.meet()
            self.release(self.cta.k, self.k_used)
            self.release(self.cta.v, self.v_used)
            self.k_used, self.v_used = self.k_used + 1, self.v_used + 1

    def first(self, use: int, count: int, tile: int) -> Thread:
        """QK of a tile's first block."""
        n_blocks = self.problem.seen(tile, self.wg)
        yield from self.hand_back(count, n_blocks, self.problem.loaded(tile) - n_blocks)
        yield self.cta.q.filled(use)
        self.cta.q.read(use, count)
        if n_blocks > 0:
            yield from self.key(count, n_blocks - 1)
        else:
            yield self.meeting.meet()

    def run(self) -> Thread:
        problem, wg = self.problem, self.wg
        count = q_used = 0
        begun = False
        yield self.receive(0)
        tile = self.cta.words[0]
        while tile >= 0:
            n_blocks = problem.seen(tile, wg)
            if not begun:
                yield from self.first(q_used, count, tile)
            for i in range(1, n_blocks):
                yield from self.key(count, n_blocks - 1 - i)
                yield from self.value(count, n_blocks - i)
            self.release(self.cta.q, q_used)
            q_used += 1
            begun = False
            if n_blocks > 0:
                beside = None
                yield self.meeting.meet(self.cta.q.filled(q_used)())
                if self.meeting.agreed:
                    yield self.receive(count + 1)
                    following = self.cta.words[(count + 1) % SLOTS]
                    seen = problem.seen(following, wg) if following >= 0 else 0
                    begun = seen > 0 and problem.loaded(following) - seen <= self.most_others
                    beside = self.first(q_used, count + 1, following) if begun else None
                yield from self.value(count, 0, beside)
            if tile < index.AGAIN and n_blocks > 0 and (tile, wg) in self.cta.world.failing:
                self.cta.failed[count % SLOTS] = tile
            if self.warp == 0:
                self.cta.world.stored.setdefault((index.tile_number(tile), wg), []).append(tile >= index.AGAIN)
            yield _at_once
            self.done(count)
            count += 1
            yield self.receive(count)
            tile = self.cta.words[count % SLOTS]
            while tile == PAUSE:
                self.done(count)
                count += 1
                yield self.receive(count)
                tile = self.cta.words[count % SLOTS]


class World:
    def __init__(self, problem: Problem, seed: int, guarded: bool = True) -> None:
        self.problem, self.random, self.guarded = problem, random.Random(seed), guarded
        self.loads: list[Callable[[], object]] = []
        self.counter = 0
        self.stored: dict[tuple[int, int], list[bool]] = {}
        share = self.random.choice((0.0, 0.2, 1.0))
        every = [(t, w) for t in range(problem.num_tiles) for w in range(problem.warpgroups)]
        self.failing = {which for which in every if self.random.random() < share}

    def later(self, load: Callable[[], object]) -> None:
        self.loads.append(load)

    def draw(self, tile: int) -> int:
        ctas, num_tiles = self.problem.ctas, self.problem.num_tiles
        if not self.problem.dynamic:
            return int(index.later_tile(tile, ctas, num_tiles))
        drawn, self.counter = self.counter, self.counter + 1
        if drawn == num_tiles - 1:
            self.counter = 0
        return int(index.later_tile(drawn, ctas, num_tiles))

    def run(self) -> list[Cta]:
        ctas = [Cta(self.problem, number, self) for number in range(self.problem.ctas)]
        waiting: dict[Thread, Condition] = {}
        for cta in ctas:
            waiting |= dict.fromkeys(cta.threads(), _at_once)
        speed = {thread: self.random.choice((0.05, 0.5, 1.0)) for thread in waiting}
        memory = self.random.choice((0.02, 0.3, 1.0))
        while waiting or self.loads:
            ready = [thread for thread, passed in waiting.items() if passed()]
            assert ready or self.loads, "deadlock"
            weights = [*(speed[thread] for thread in ready), *[memory] * len(self.loads)]
            number = self.random.choices(range(len(weights)), weights)[0]
            if number < len(ready):
                try:
                    waiting[ready[number]] = next(ready[number])
                except StopIteration:
                    del waiting[ready[number]]
            else:
                self.loads.pop(number - len(ready))()
        return ctas


PROBLEMS = [
    Problem(causal, seqlen_q, seqlen_k, heads, *plan)
    for causal, seqlen_q, seqlen_k, heads in (
        (False, 1, 1, 5),
        (False, 70, 100, 5),  # warpgroups without rows
        (False, 600, 500, 3),
        (False, 300, 0, 3),
        (True, 100, 300, 5),
        (True, 640, 640, 3),
        (True, 900, 300, 2),  # rows that see no key
        (True, 512, 2000, 2),
    )
    for plan in (
        (128, 2, 2, 2, True, 1),
        (64, 2, 2, 1, True, 2),
        (64, 4, 4, 2, True, 2),
        (64, 4, 2, 2, True, 1),  # more blocks that only others see than stages
        (128, 3, 3, 2, False, 2),
    )
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_tile_is_stored_and_nothing_hangs(problem: Problem, seed: int) -> None:
    problem = replace(problem, ctas=min(problem.ctas, problem.num_tiles))
    world = World(problem, seed)
    ctas = world.run()
    everyone = range(problem.warpgroups)
    assert world.stored.keys() == {(tile, wg) for tile in range(problem.num_tiles) for wg in everyone}
    for (tile, _), exact in world.stored.items():
        failed = any((tile, wg) in world.failing and problem.seen(tile, wg) > 0 for wg in everyone)
        assert exact == ([False, True] if failed else [False])
    assert world.counter == 0
    for cta in ctas:
        assert cta.failed == [-1] * SLOTS
        for ring in (cta.q, cta.k, cta.v):
            assert all(barrier.pending == barrier.arrivals for barrier in (*ring.full, *ring.empty))


def test_a_block_handed_back_too_late_would_hang() -> None:
    """The simulation sees what the condition on ``STAGES`` is for."""
    problem = Problem(True, 640, 640, 3, 64, 4, 2, 2, True, 1)
    worlds = [World(problem, seed, guarded=False) for seed in range(12)]
    with pytest.raises(AssertionError, match="deadlock"):
        deque((world.run() for world in worlds), maxlen=0)
