"""What a kernel must pass.  Standard library only: CI compares evidence with this list on machines without torch.

A case gets an id from everything that its outcome depends on besides the kernel: its own fields and the source of the
functions that make its inputs and judge its results, of which its own layout and values alone.  So a new case, layout
or option makes only itself pending, and a changed judge only the cases that use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import TypeVar

import fa3.contract
from fa3.contract import Key

from fa3gen.digest import canonical, sha256
from fa3gen.verify.source import closure

_T = TypeVar("_T")

_HERE = Path(__file__).parent
_REFERENCE = Path(fa3.contract.__file__).parent / "runtime" / "reference.py"

_MAKE = (_HERE / "inputs.py", "make")
_SAME_BITS = (_HERE / "numerics.py", "different")
#: Check -> the functions that decide its outcome: (file, name).  What they call in their own file counts too.
JUDGES: dict[str, tuple[tuple[Path, str], ...]] = {
    "numerics": (
        *(_MAKE, (_HERE / "inputs.py", "guarded")),
        *((_HERE / "numerics.py", "check"), (_REFERENCE, "attention")),
    ),
    "graphs": (_MAKE, _SAME_BITS, (_HERE / "behaviour.py", "check_graphs")),
    "streams": (_MAKE, _SAME_BITS, (_HERE / "behaviour.py", "check_streams")),
    "threads": (_MAKE, _SAME_BITS, (_HERE / "behaviour.py", "check_threads")),
}
#: Tables of those files of which a case uses one entry, and the field that says which.
PICKS = {"LAYOUTS": "layout", "_OUTPUTS": "layout", "VALUES": "values"}


@dataclass(frozen=True)
class Case:
    """A problem for a kernel, which adds dtype, head_dim and mask.  ``layout`` and ``values``: see inputs.py."""

    seqlen_q: int
    seqlen_k: int
    batch: int = 2
    heads_q: int = 2
    heads_k: int = 2
    layout: str = "contiguous"
    values: str = "normal"
    softmax_scale: float | None = None
    ctas: int | None = None  # SMs that sm_margin leaves to the launch
    check: str = "numerics"
    quick: bool = False  # part of `verify --quick`

    @property
    def label(self) -> str:
        """``b2 h8/2 sq113 sk203 padded``: shape and what is not as usual."""
        parts = [f"b{self.batch} h{self.heads_q}/{self.heads_k} sq{self.seqlen_q} sk{self.seqlen_k}"]
        parts += [word for word in (self.layout, self.values) if word not in ("contiguous", "normal")]
        parts += [f"scale {self.softmax_scale}"] if self.softmax_scale is not None else []
        parts += [f"ctas {self.ctas}"] if self.ctas is not None else []
        parts += [self.check] if self.check != "numerics" else []
        return " ".join(parts)

    @property
    def seed(self) -> int:
        """Of the random inputs; depends on the case alone."""
        return int(sha256(canonical(self._fields()).encode())[:12], 16)

    @property
    def id(self) -> str:
        """Eight hex digits."""
        return sha256(canonical([self._fields(), _judges(self.check, self.layout, self.values)]).encode())[:8]

    def _fields(self) -> dict[str, object]:
        """What makes the problem.  An option that is not given is no part of it, so a new one changes no other case."""
        return {name: value for name, value in asdict(self).items() if name != "quick" and value is not None}


@cache
def _judges(check: str, layout: str, values: str) -> str:
    """The digest of the functions that a case of these uses."""
    chosen = {"layout": layout, "values": values}
    picks = {table: chosen[field] for table, field in PICKS.items()}
    return sha256("\n".join(closure(_source(file), name, picks) for file, name in JUDGES[check]).encode())


@cache
def _source(file: Path) -> str:
    return file.read_text("utf-8")


#: Values that other dtypes cannot hold.
BF16_VALUES = ("heavy",)
#: Layouts that want q, k and v of one head_dim, and what stands for them where v's differs.
ONE_HEAD_DIM = {"packed": "fused", "paired": "beside"}


def for_kernel(key: Key) -> tuple[Case, ...]:
    """The cases of a kernel, in the order in which they are run."""
    seen: dict[str, Case] = {}
    for group in GROUPS[key.family]:
        for case in group():
            if "x" in key.head_dim:
                case = replace(case, layout=ONE_HEAD_DIM.get(case.layout, case.layout))
            if key.dtype == "bf16" or case.values not in BF16_VALUES:
                seen.setdefault(case.id, case)
    return tuple(seen.values())


# --- the cases of family fwd: dense forward


def _lengths() -> Iterator[Case]:
    """Lengths around the tiles' edges, batch 1 to 7, every ratio of heads."""
    heads = _cycle(((1, 1), (3, 1), (4, 1), (7, 1), (8, 1), (6, 2), (5, 5), (16, 4)))
    batches = _cycle(range(1, 8))
    for seqlen in (1, 2, 63, 64, 65, 113, 127, 128, 129, 200, 1000, 4096):
        heads_q, heads_k = next(heads)
        batch = 1 if seqlen == 4096 else next(batches)
        yield Case(seqlen, seqlen, batch, heads_q, heads_k, quick=seqlen in (1, 65, 128, 1000))


def _mixed_lengths() -> Iterator[Case]:
    """seqlen_q and seqlen_k apart, both ways, and rows and tiles that see no key under the causal mask."""
    pairs = (
        *((1, 2), (1, 64), (1, 65), (1, 1000), (1, 4096), (2, 1), (5, 2), (64, 1), (1000, 1), (4096, 1)),
        *((63, 65), (65, 63), (113, 203), (203, 113), (127, 129), (129, 127), (127, 4096), (4096, 127)),
        *((200, 1000), (1000, 200), (300, 130), (700, 64), (64, 700), (1000, 4096), (4096, 1000), (2, 4096)),
    )
    heads = _cycle(((2, 2), (3, 1), (8, 2), (7, 1)))
    batches = _cycle((1, 2, 3))
    for seqlen_q, seqlen_k in pairs:
        heads_q, heads_k = next(heads)
        quick = (seqlen_q, seqlen_k) in ((1, 1000), (1000, 200), (113, 203))
        yield Case(seqlen_q, seqlen_k, next(batches), heads_q, heads_k, quick=quick)


def _tile_edges() -> Iterator[Case]:
    """One below, at and above multiples of the tile sizes that plans use (64 to 192 rows, 48 to 128 keys)."""
    heads = _cycle(((1, 1), (2, 1)))
    for tile in (80, 96, 128, 160, 192, 256, 320, 384):
        for step in (-1, 0, 1):
            heads_q, heads_k = next(heads)
            yield Case(tile + step, 2 * tile - step, 1, heads_q, heads_k)


def _no_keys() -> Iterator[Case]:
    for seqlen_q in (1, 64, 200, 1000):
        yield Case(seqlen_q, 0, 2, 4, 2, quick=seqlen_q == 200)
    yield Case(0, 64)
    yield Case(64, 64, batch=0)
    yield Case(0, 0)


def _heads() -> Iterator[Case]:
    """Head counts up to 64 and ratios, decode-like and longer."""
    for heads in ((3, 3), (28, 4), (40, 8), (24, 8), (64, 8), (64, 1), (48, 1), (33, 3), (7, 7), (63, 9), (64, 64)):
        for seqlen_q in (1, 129):
            yield Case(seqlen_q, 333, 1, *heads, quick=heads == (28, 4))
    for batch in range(1, 8):
        yield Case(65, 130, batch, 4, 2)


def _layouts() -> Iterator[Case]:
    """Views of other tensors, with NaN and infinities where they have gaps."""
    for layout in ("heads_first", "seqlen_first", "padded", "paired", "shared_batch", "shared_heads"):
        yield Case(200, 200, 2, 8, 2, layout, quick=layout in ("heads_first", "padded"))
        yield Case(113, 257, 3, 4, 4, layout)
        yield Case(257, 113, 2, 3, 1, layout)
    for seqlen in (1, 65, 200, 1000):
        yield Case(seqlen, seqlen, 2, 8, 2, "packed", quick=seqlen == 200)
        yield Case(seqlen, seqlen + 3, 2, 2, 2, "padded", "negative")
    for batch, seqlen_q, seqlen_k, heads_q, heads_k in (
        *((1, 129, 257, 4, 1), (1, 1, 100, 8, 1), (1, 64, 1, 1, 1), (3, 1, 200, 1, 1), (1, 1, 1, 1, 1)),
        *((2, 200, 130, 7, 1), (1, 300, 300, 2, 2)),
    ):
        yield Case(seqlen_q, seqlen_k, batch, heads_q, heads_k, "odd_ones")
    yield Case(100, 200, 2, 2, 1, "far")


def _values() -> Iterator[Case]:
    """Inputs that are hard on the softmax: see inputs.py."""
    for values in ("large", "growing", "shrinking", "outlier", "negative", "constant", "offset", "steps"):
        for seqlen_q, seqlen_k in ((129, 1000), (1000, 129), (777, 777), (64, 2000)):
            yield Case(seqlen_q, seqlen_k, 1, 4, 2, values=values, quick=seqlen_q == 777)
    yield Case(130, 4096, 1, 2, 2, values="anchored", quick=True)
    yield Case(300, 16384, 1, 1, 1, values="anchored")
    yield Case(2000, 4000, 1, 2, 1, values="self")
    yield Case(300, 1000, 1, 12, 12, values="leaps", quick=True)
    yield Case(1000, 1000, 1, 12, 12, values="leaps", ctas=5)
    for values in ("rising", "soaring", "jump", "sink", "tower", "stairs", "hidden", "mixed", "heavy"):
        for seqlen_q, seqlen_k in ((333, 1000), (1000, 300), (777, 777), (100, 2000)):
            yield Case(seqlen_q, seqlen_k, 1, 6, 2, values=values, quick=seqlen_q == 777)
    for seqlen_k in (1, 3, 31, 65, 79, 81, 127, 129, 191, 193):
        yield Case(130, seqlen_k, 1, 2, 1, values="negative")


def _scales() -> Iterator[Case]:
    for scale in (1e-30, 1e-3, 0.1147213876, 1.0, 4.0):
        yield Case(200, 333, 2, 4, 2, softmax_scale=scale)
    for scale in (1e-3, 1.0):
        yield Case(333, 200, 1, 2, 2, values="large", softmax_scale=scale)


def _many_tiles() -> Iterator[Case]:
    """More tiles than SMs, so that persistent CTAs take several; few CTAs; several sections of heads."""
    yield Case(1000, 1000, 4, 32, 8, quick=True)
    yield Case(64, 64, 7, 64, 64)
    yield Case(1, 1000, 7, 64, 8)
    yield Case(4096, 4096, 2, 40, 40)
    yield Case(8192, 8192, 1, 3, 1)
    yield Case(2000, 300, 3, 24, 24)
    for ctas in (1, 2, 7, 100):
        yield Case(500, 700, 2, 8, 2, ctas=ctas, quick=ctas == 2)
    yield Case(700, 500, 2, 9, 3, ctas=3, values="growing")
    yield Case(300, 300, 1, 64, 8, layout="padded", ctas=5)
    yield Case(1500, 1500, 2, 24, 24, values="mixed")
    yield Case(900, 1200, 1, 8, 2, values="mixed", ctas=3)
    yield Case(100, 900, 4, 8, 8, values="soaring", ctas=5)


def _random() -> Iterator[Case]:
    """Shapes that nobody thought of; always the same ones."""
    for i in range(40):
        pick = _Picker(f"fwd {i}")
        heads_k = pick((1, 2, 3, 4, 5, 8))
        ratio = pick([r for r in (1, 2, 3, 4, 5, 6, 7, 8, 16) if r * heads_k <= 64])
        lengths = [pick((range(1, 300), range(200, 2000), range(1, 70))) for _ in range(2)]
        seqlen_q, seqlen_k = (pick(length) for length in lengths)
        layout = pick(("contiguous", "contiguous", "heads_first", "padded"))
        values = pick(("normal", "normal", "large", "growing", "negative"))
        ctas = pick((None, None, None, 11))
        yield Case(seqlen_q, seqlen_k, pick(range(1, 8)), ratio * heads_k, heads_k, layout, values, ctas=ctas)


def _behaviour() -> Iterator[Case]:
    yield Case(600, 700, 3, 16, 4, check="graphs")
    yield Case(600, 700, 3, 16, 4, check="streams")
    yield Case(600, 700, 3, 16, 4, check="threads")


#: Family -> groups of cases.
GROUPS: dict[str, tuple[Callable[[], Iterator[Case]], ...]] = {
    "fwd": (
        *(_lengths, _mixed_lengths, _tile_edges, _no_keys, _heads, _layouts, _values, _scales),
        *(_many_tiles, _random, _behaviour),
    ),
}


def for_sanitizer(key: Key) -> tuple[Case, ...]:
    """Small shapes that reach every branch of a kernel: compute-sanitizer is slow."""
    return (
        Case(65, 200, 1, 2, 1, "padded"),
        Case(200, 65, 1, 2, 2, "heads_first"),
        Case(1, 1, 2, 1, 1),
        Case(300, 0, 1, 1, 1),
        Case(500, 300, 2, 4, 2, ctas=2),
        Case(400, 700, 1, 2, 1, values="growing", ctas=3),
        Case(200, 500, 1, 4, 2, values="mixed", ctas=2),
    )


class _Picker:
    """Draws from sequences; the same for the same seed on every machine and Python."""

    def __init__(self, seed: str) -> None:
        self._seed, self._draws = seed, count()

    def __call__(self, items: Sequence[_T]) -> _T:
        digest = hashlib.sha256(f"{self._seed} {next(self._draws)}".encode()).digest()
        return items[int.from_bytes(digest[:8], "big") % len(items)]


def _cycle(items: Sequence[_T]) -> Iterator[_T]:
    for i in count():
        yield items[i % len(items)]
