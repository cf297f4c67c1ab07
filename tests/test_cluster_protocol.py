"""The barriers of a cluster's two CTAs, as the forward kernel uses them, with threads that run in a random order.

Each role of the kernel is written down again as a generator that yields what it waits for; a warpgroup counts as one
thread.  What goes to another CTA, and every load, arrives later and in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from fa3gen.device import index

Condition = Callable[[], bool]
Thread = Iterator[Condition]

CTAS = 2
ROWS = 64  # of a warpgroup
TILE_N = 128
WARPGROUPS = 2
TILE_M = ROWS * WARPGROUPS
HALF = 1  # what a CTA's load brings of a stage, which is full with CTAS of them


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

    def ended(self, phase: int) -> Callable[[], bool]:
        """Waits by parity, as the hardware does, and checks that this is not taken for another phase."""

        def ready() -> bool:
            passed = (self.phases - 1) % 2 == phase % 2
            assert not passed or self.phases - 1 == phase, "a phase was missed"
            return passed

        return ready


class Ring:
    """Stages of one CTA: barriers, what they hold, and who has still to read it."""

    def __init__(self, stages: int, consumers: int) -> None:
        self.full = [Barrier(1) for _ in range(stages)]
        self.empty = [Barrier(consumers) for _ in range(stages)]
        self.holds: list[list[object]] = [[] for _ in range(stages)]
        self.readers = [0] * stages

    def put(self, stage: int, what: object, parts: int, readers: int) -> None:
        """A load arrives."""
        if len(self.holds[stage]) == parts:
            assert self.readers[stage] == 0, "overwritten while it is read"
            self.holds[stage] = []
        self.holds[stage].append(what)
        if len(self.holds[stage]) == parts:
            self.readers[stage] = readers
        self.full[stage].add(HALF)


@dataclass
class Problem:
    causal: bool
    seqlen_q: int
    seqlen_k: int
    heads: int
    stages: int
    q_stages: int
    dynamic: bool
    clusters: int

    @property
    def m_tiles(self) -> int:
        return int(index.ceil_div(self.seqlen_q, TILE_M * CTAS))

    @property
    def num_tiles(self) -> int:
        return self.m_tiles * self.heads

    def m_block(self, message: int, rank: int) -> int:
        tile = index.tile_number(message)
        if self.causal:
            pair, _, _ = index.longest_first(tile, self.m_tiles, self.num_tiles, self.heads, 2)
        else:
            pair, _, _ = index.head_by_head(tile, self.m_tiles, self.heads)
        return int(pair) * CTAS + rank

    def blocks(self, first: int, count: int) -> int:
        last = min(first + count, self.seqlen_q) - 1
        keys = index.visible_keys(last, self.seqlen_q, self.seqlen_k) if self.causal else self.seqlen_k
        return int(index.ceil_div(keys, TILE_N)) if last >= first else 0

    def loaded(self, m_block: int, rank: int) -> int:
        return self.blocks((m_block - rank) * TILE_M, CTAS * TILE_M)


def _at_once() -> bool:
    return True


class Cta:
    def __init__(self, problem: Problem) -> None:
        self.q = Ring(problem.q_stages, CTAS)
        self.k, self.v = (Ring(problem.stages, WARPGROUPS * CTAS) for _ in range(2))
        self.out_full = [[Barrier(1) for _ in range(WARPGROUPS)] for _ in range(problem.q_stages)]
        self.failed = [-1] * problem.q_stages
        self.words, self.word_full = [0, 0], [Barrier(1), Barrier(1)]
        self.word_empty = [Barrier(WARPGROUPS + 1) for _ in range(2)]
        self.channel, self.channel_full, self.channel_empty = 0, Barrier(1), Barrier(1)


class Cluster:
    def __init__(self, problem: Problem, number: int, world: World) -> None:
        self.problem, self.number, self.world = problem, number, world
        self.ctas = [Cta(problem) for _ in range(CTAS)]

    def threads(self) -> Iterator[Thread]:
        for rank in range(CTAS):
            yield self.load(rank)
            yield self.store(rank)
            yield from (self.consume(rank, wg) for wg in range(WARPGROUPS))

    def release(self, stage: int, rank: int) -> None:
        """Hands a stage of Q back, in the own CTA first."""
        self.ctas[rank].q.empty[stage].arrive(rank)
        self.world.later(partial(self.ctas[1 - rank].q.empty[stage].arrive, rank))

    def load(self, rank: int) -> Thread:
        problem, cta, stages, q_stages = self.problem, self.ctas[rank], self.problem.stages, self.problem.q_stages
        used = {"k": 0, "v": 0}
        tile = drawn = self.number
        count = 0

        def block(ring: str, what: object) -> Thread:
            lap, stage = divmod(used[ring], stages)
            used[ring] += 1
            yield getattr(cta, ring).empty[stage].ended(lap - 1)
            getattr(cta, ring).full[stage].arrive(expect=CTAS * HALF)
            for to in self.ctas:
                self.world.later(partial(getattr(to, ring).put, stage, what, CTAS, WARPGROUPS))

        while tile >= 0:
            n_blocks = problem.loaded(problem.m_block(tile, rank), rank)
            if n_blocks > 0:
                yield from block("k", (count, n_blocks - 1))
            lap, stage = divmod(count, q_stages)
            yield cta.q.empty[stage].ended(lap - 1)
            if n_blocks > 0:
                cta.q.full[stage].arrive(expect=HALF)
                self.world.later(partial(cta.q.put, stage, count, 1, WARPGROUPS))
            else:
                assert cta.q.readers[stage] == 0
                cta.q.holds[stage], cta.q.readers[stage] = [count], WARPGROUPS
                cta.q.full[stage].arrive()
            failed, cta.failed[stage] = cta.failed[stage], -1
            for i in range(1, n_blocks):
                yield from block("k", (count, n_blocks - 1 - i))
                yield from block("v", (count, n_blocks - i))
            if n_blocks > 0:
                yield from block("v", (count, 0))
            if rank == 0:
                tile, drawn = yield from self.choose(count, failed, drawn)
                yield cta.channel_empty.ended(count - 1)
                self.world.later(partial(self.tell, tile))
            else:
                assert failed == -1
                cta.channel_full.arrive(expect=1)
                yield cta.channel_full.ended(count)
                tile = cta.channel
                self.world.later(self.ctas[0].channel_empty.arrive)
            yield cta.word_empty[count % 2].ended(count // 2 - 1)
            cta.words[count % 2] = tile
            cta.word_full[count % 2].arrive()
            count += 1

    def choose(self, count: int, failed: int, drawn: int) -> Generator[Condition, None, tuple[int, int]]:
        cta, q_stages = self.ctas[0], self.problem.q_stages
        if failed >= 0:
            return failed + index.AGAIN, drawn
        if drawn >= 0:
            drawn = self.world.draw(drawn)
            if drawn >= 0:
                return drawn, drawn
        for following in range(count + 1, count + 1 + q_stages):
            lap, stage = divmod(following, q_stages)
            yield cta.q.empty[stage].ended(lap - 1)
            failed, cta.failed[stage] = cta.failed[stage], -1
            if failed >= 0:
                return failed + index.AGAIN, drawn
        return -1, drawn

    def tell(self, tile: int) -> None:
        self.ctas[1].channel = tile
        self.ctas[1].channel_full.add(1)

    def receive(self, cta: Cta, count: int, who: object) -> Generator[Condition, None, int]:
        yield cta.word_full[count % 2].ended(count // 2)
        tile = cta.words[count % 2]
        cta.word_empty[count % 2].arrive(who)
        return tile

    def store(self, rank: int) -> Thread:
        cta, tile, count = self.ctas[rank], self.number, 0
        while tile >= 0:
            lap, stage = divmod(count, self.problem.q_stages)
            for barrier in cta.out_full[stage]:
                yield barrier.ended(lap)
            self.world.stored.setdefault((index.tile_number(tile), rank), []).append(tile >= index.AGAIN)
            yield _at_once
            self.release(stage, rank)
            tile = yield from self.receive(cta, count, "store")
            count += 1

    def consume(self, rank: int, wg: int) -> Thread:
        problem, cta, tile, count, used = self.problem, self.ctas[rank], self.number, 0, 0

        def wait(ring: str, i: int) -> Thread:
            lap, stage = divmod(used + i, problem.stages)
            stages = getattr(cta, ring)
            yield stages.full[stage].ended(lap)
            assert stages.holds[stage] == [(count, all_blocks - 1 - i)] * CTAS

        def release(ring: str, i: int) -> Thread:
            yield _at_once
            stage = (used + i) % problem.stages
            stages = getattr(cta, ring)
            assert stages.holds[stage] == [(count, all_blocks - 1 - i)] * CTAS
            stages.readers[stage] -= 1
            for to in self.ctas:
                self.world.later(partial(getattr(to, ring).empty[stage].arrive, (rank, wg)))

        while tile >= 0:
            m_block = problem.m_block(tile, rank)
            n_blocks = problem.blocks(m_block * TILE_M + wg * ROWS, ROWS)
            all_blocks = problem.loaded(m_block, rank)
            handed_back = all_blocks - n_blocks
            for i in range(handed_back):
                for step in (wait, release):
                    yield from step("k", i)
                    yield from step("v", i)
            lap, stage = divmod(count, problem.q_stages)
            yield cta.q.full[stage].ended(lap)
            assert cta.q.holds[stage] == [count]
            for i in range(handed_back, all_blocks):
                yield from wait("k", i)
                if i > handed_back:
                    yield from wait("v", i - 1)
                yield from release("k", i)
                if i > handed_back:
                    yield from release("v", i - 1)
            if n_blocks > 0:
                yield from wait("v", all_blocks - 1)
                yield from release("v", all_blocks - 1)
            used += all_blocks
            if tile < index.AGAIN and n_blocks > 0 and (tile, rank, wg) in self.world.failing:
                arrived: list[bool] = []
                self.world.later(partial(self.mark, stage, tile, arrived))
                yield partial(bool, arrived)  # the fence
            cta.q.readers[stage] -= 1
            cta.out_full[stage][wg].arrive()
            tile = yield from self.receive(cta, count, wg)
            count += 1

    def mark(self, stage: int, tile: int, arrived: list[bool]) -> None:
        self.ctas[0].failed[stage] = tile
        arrived.append(True)


class World:
    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.random = problem, random.Random(seed)
        self.messages: list[Callable[[], object]] = []
        self.counter = 0
        self.stored: dict[tuple[int, int], list[bool]] = {}
        share = self.random.choice((0.0, 0.2, 1.0))
        every = [(t, r, w) for t in range(problem.num_tiles) for r in range(CTAS) for w in range(WARPGROUPS)]
        self.failing = {which for which in every if self.random.random() < share}

    def later(self, message: Callable[[], object]) -> None:
        self.messages.append(message)

    def draw(self, tile: int) -> int:
        workers = index.workers(self.problem.clusters * CTAS, CTAS)
        if not self.problem.dynamic:
            return int(index.later_tile(tile, workers, self.problem.num_tiles))
        drawn, self.counter = self.counter, self.counter + 1
        if drawn == self.problem.num_tiles - 1:
            self.counter = 0
        return int(index.later_tile(drawn, workers, self.problem.num_tiles))

    def run(self) -> list[Cluster]:
        clusters = [Cluster(self.problem, number, self) for number in range(self.problem.clusters)]
        waiting: dict[Thread, Callable[[], bool]] = {}
        for cluster in clusters:
            waiting |= dict.fromkeys(cluster.threads(), _at_once)
        speed = {thread: self.random.choice((0.05, 0.5, 1.0)) for thread in waiting}
        network = self.random.choice((0.02, 0.3, 1.0))
        while waiting or self.messages:
            ready = [thread for thread, passed in waiting.items() if passed()]
            assert ready or self.messages, "deadlock"
            weights = [*(speed[thread] for thread in ready), *[network] * len(self.messages)]
            number = self.random.choices(range(len(weights)), weights)[0]
            if number < len(ready):
                try:
                    waiting[ready[number]] = next(ready[number])
                except StopIteration:
                    del waiting[ready[number]]
            else:
                self.messages.pop(number - len(ready))()
        return clusters


PROBLEMS = [
    Problem(causal, seqlen_q, seqlen_k, heads, stages, q_stages, dynamic, clusters)
    for causal, seqlen_q, seqlen_k in (
        (False, 1, 1),
        (False, 600, 500),
        (False, 300, 0),
        (True, 100, 300),
        (True, 640, 640),
        (True, 900, 300),  # rows that see no key
        (True, 512, 2000),
    )
    for heads, stages, q_stages, dynamic, clusters in ((3, 2, 2, True, 1), (2, 3, 1, True, 2), (5, 4, 2, False, 2))
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_every_tile_is_stored_and_nothing_hangs(problem: Problem, seed: int) -> None:
    problem = replace(problem, clusters=min(problem.clusters, problem.num_tiles))
    world = World(problem, seed)
    clusters = world.run()
    assert world.stored.keys() == {(tile, rank) for tile in range(problem.num_tiles) for rank in range(CTAS)}
    for (tile, _), exact in world.stored.items():
        pairs = ((rank, wg) for rank in range(CTAS) for wg in range(WARPGROUPS))
        seeing = [p for p in pairs if problem.blocks(problem.m_block(tile, p[0]) * TILE_M + p[1] * ROWS, ROWS)]
        failed = any((tile, *which) in world.failing for which in seeing)
        assert exact == ([False, True] if failed else [False])
    assert world.counter == 0
    for cta in (cta for cluster in clusters for cta in cluster.ctas):
        assert cta.failed == [-1] * problem.q_stages
        for ring in (cta.q, cta.k, cta.v):
            assert all(barrier.pending == barrier.arrivals for barrier in (*ring.full, *ring.empty))
