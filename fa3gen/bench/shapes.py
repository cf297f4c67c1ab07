"""The problems that are timed, and their arithmetic: named sets, and sets that a file lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from fa3.choice import spell_head_dims

from fa3gen.errors import UsageError

DTYPES = ("bf16", "fp16")
MASKS = ("full", "causal")


@dataclass(frozen=True, slots=True)
class Shape:
    """Attention of q (batch, seqlen_q, heads_q, head_dim) on k and v (batch, seqlen_k, heads_k, head_dim or v_dim)."""

    dtype: str
    head_dim: int
    mask: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_k: int
    name: str = ""  # of the model that it comes from
    head_dim_v: int = 0  # of v and out, where it is another: see v_dim

    @property
    def v_dim(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def dims(self) -> str:
        """The head dims as kernels' names spell them."""
        return spell_head_dims(self.head_dim, self.v_dim)

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    @property
    def group(self) -> str:
        """What is tabled together, which is what one kernel does: ``bf16 d128 causal``."""
        return f"{self.dtype} d{self.dims} {self.mask}"

    @property
    def label(self) -> str:
        """``b2 s4096 h32/8`` within its group; lengths that differ are ``q512 k4096``."""
        same = self.seqlen_q == self.seqlen_k
        seqlen = f"s{self.seqlen_q}" if same else f"q{self.seqlen_q} k{self.seqlen_k}"
        heads = f"h{self.heads_q}" if self.heads_q == self.heads_k else f"h{self.heads_q}/{self.heads_k}"
        return " ".join(filter(None, (self.name, f"b{self.batch}", seqlen, heads)))

    @property
    def pairs(self) -> float:
        """Of a query and a key that it sees; of a causal mask, aligned bottom right, the area as published figures do.

        That is half of a square: the diagonal counts as half.
        """
        q, k = self.seqlen_q, self.seqlen_k
        if not self.causal:
            return float(q * k)
        return q * (2 * k - q) / 2 if q <= k else k * k / 2

    @property
    def flops(self) -> float:
        """Of the two products."""
        return 2.0 * self.batch * self.heads_q * self.pairs * (self.head_dim + self.v_dim)

    def tflops(self, milliseconds: float) -> float:
        """TFLOP/s of a call that takes ``milliseconds``."""
        return self.flops / milliseconds / 1e9


#: So small that a call's time is the host's.
TINY = Shape("bf16", 128, "causal", 1, 64, 64, 8, 8)


# --- named sets


#: From many short sequences to one long one.
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, WIDTH = 16384, 2048


def grid(
    dtype: str,
    head_dims: Iterable[int],
    masks: Iterable[str],
    seqlens: Iterable[int] = SEQLENS,
    tokens: int = TOKENS,
    width: int = WIDTH,
) -> tuple[Shape, ...]:
    """Shapes of ``tokens`` tokens and of heads that are ``width`` wide together; raises UsageError."""
    found = []
    for head_dim, mask, seqlen in product(head_dims, masks, seqlens):
        for value, total, option in ((seqlen, tokens, "--tokens"), (head_dim, width, "--width")):
            if value < 1 or total % value:
                raise UsageError(f"{option} {total} is no multiple of {value}")
        heads = width // head_dim
        found.append(Shape(dtype, head_dim, mask, tokens // seqlen, seqlen, seqlen, heads, heads))
    return tuple(found)


def paper() -> tuple[Shape, ...]:
    """As in the paper."""
    return grid("bf16", (64, 128, 256), MASKS)


def odd() -> tuple[Shape, ...]:
    """What the paper's shapes leave out: no powers of two, few heads, GQA, lengths that differ, fp16."""
    sizes = (
        # head_dim, mask, batch, seqlen_q, seqlen_k, heads_q, heads_k; first what fills no tile and no wave
        *((64, "full", 3, 1000, 1000, 24, 24), (64, "causal", 3, 3000, 3000, 24, 24)),
        *((64, "causal", 3, 5000, 5000, 7, 7), (64, "full", 3, 7777, 7777, 7, 7)),
        *((128, "full", 3, 1000, 1000, 24, 24), (128, "causal", 3, 1000, 1000, 7, 7)),
        *((128, "full", 3, 3000, 3000, 7, 7), (128, "causal", 3, 5000, 5000, 24, 24)),
        *((128, "causal", 3, 7777, 7777, 7, 7), (256, "full", 3, 1000, 1000, 7, 7)),
        *((256, "causal", 3, 3000, 3000, 7, 7), (256, "full", 3, 5000, 5000, 7, 7)),
        (256, "causal", 3, 7777, 7777, 7, 7),
        # GQA of ratio 4 and 8
        *((64, "causal", 2, 4096, 4096, 32, 4), (128, "causal", 2, 4096, 4096, 32, 8)),
        *((128, "full", 2, 4096, 4096, 32, 8), (128, "causal", 3, 5000, 5000, 24, 3)),
        (256, "causal", 2, 4096, 4096, 16, 4),
        # more keys than queries, as in a prefill by chunks, and fewer
        *((64, "causal", 4, 1024, 5000, 24, 24), (128, "causal", 4, 512, 8192, 16, 16)),
        *((128, "full", 3, 1000, 7777, 24, 3), (256, "causal", 4, 512, 4096, 8, 8)),
        *((64, "full", 2, 8192, 1024, 32, 32), (128, "causal", 2, 8192, 3000, 16, 16)),
    )
    halves = (
        *((64, "full", 4096), (64, "causal", 16384), (128, "full", 1024), (128, "causal", 8192)),
        *((256, "full", 2048), (256, "causal", 4096)),
    )
    return (
        *(Shape("bf16", *size) for size in sizes),
        *(
            Shape("fp16", head_dim, mask, 16384 // seqlen, seqlen, seqlen, 2048 // head_dim, 2048 // head_dim)
            for head_dim, mask, seqlen in halves
        ),
    )


def dims() -> tuple[Shape, ...]:
    """Head dims beside the usual ones: 16k tokens, heads about 2048 wide together."""
    return tuple(
        Shape("bf16", qk, mask, TOKENS // seqlen, seqlen, seqlen, heads, heads, head_dim_v=v)
        for qk, v, heads in ((96, 96, 21), (192, 192, 10), (192, 128, 16), (64, 256, 8))
        for mask, seqlen in product(MASKS, (512, 2048, 8192, 16384))
    )


#: (model, query heads, key/value heads, head_dim) on one GPU: TP8 is one of eight.
MODELS = (
    ("Llama-3.2-1B", 32, 8, 64),
    ("Qwen2.5-0.5B", 14, 2, 64),
    ("Llama-3-8B", 32, 8, 128),
    ("Llama-3-8B TP8", 4, 1, 128),
    ("Llama-3-70B", 64, 8, 128),
    ("Llama-3-70B TP8", 8, 1, 128),
    ("Qwen2.5-7B", 28, 4, 128),
    ("Qwen2.5-32B", 40, 8, 128),
    ("Gemma-2-27B", 32, 16, 128),
    ("Gemma-2-9B", 16, 8, 256),
    ("Gemma-2-2B", 8, 4, 256),
)


def llama() -> tuple[Shape, ...]:
    """Prefill of well-known models: several prompts of 2048 tokens, one of 8192, a chunk of 2048 after 14336.

    Of the models these are the heads alone: no windows and no soft-capping of scores.
    """
    return tuple(
        Shape("bf16", head_dim, "causal", batch, seqlen_q, seqlen_k, heads_q, heads_k, model)
        for model, heads_q, heads_k, head_dim in MODELS
        for batch, seqlen_q, seqlen_k in ((4, 2048, 2048), (1, 8192, 8192), (1, 2048, 16384))
    )


SETS: Mapping[str, Callable[[], tuple[Shape, ...]]] = {"paper": paper, "odd": odd, "dims": dims, "llama": llama}


# --- sets of a file

_DEFAULTS: Mapping[str, Any] = {"batch": 1, "mask": "full", "dtype": "bf16", "name": ""}
_REQUIRED = ("seqlen_q", "heads_q", "head_dim")
_COUNTS = ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_k", "head_dim", "head_dim_v")
_WORDS = {"mask": MASKS, "dtype": DTYPES}


def named(word: str) -> tuple[Shape, ...]:
    """The shapes of a set, or of a file; raises UsageError."""
    if word in SETS:
        return SETS[word]()
    file = Path(word)
    if not file.is_file():
        raise UsageError(f"--shapes: no set and no file {word!r}", hint=f"choose of {', '.join(SETS)}, or name a file")
    return read(file)


def read(file: Path) -> tuple[Shape, ...]:
    """The shapes that a file lists, as YAML or as JSON lines; raises UsageError.

    Each is a mapping of seqlen_q, heads_q, head_dim; and, where they are not the default, seqlen_k (seqlen_q), heads_k
    (heads_q), head_dim_v (head_dim), batch (1), mask (full), dtype (bf16), name ("").
    """
    try:
        text = file.read_text("utf-8")
        entries = [json.loads(line) for line in text.splitlines() if line.strip()] if _is_json_lines(text) else None
        entries = yaml.safe_load(text) if entries is None else entries
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: {error}", hint="--shapes takes YAML, a list of mappings, or JSON lines") from error
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{file} is no list of shapes", hint="write `- {seqlen_q: 4096, heads_q: 32, head_dim: 128}`")
    return tuple(_parse(f"{file}: shape {number}", entry) for number, entry in enumerate(entries, 1))


def _is_json_lines(text: str) -> bool:
    """Lines that are JSON objects each; YAML would call a second one an error."""
    return text.lstrip().startswith("{")


def _parse(where: str, entry: Any) -> Shape:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no mapping", hint="write `- {seqlen_q: 4096, heads_q: 32, head_dim: 128}`")
    known = {*_COUNTS, *_DEFAULTS}
    missing = [field for field in _REQUIRED if field not in entry]
    unknown = sorted(str(field) for field in entry if field not in known)
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has no field {', '.join(unknown)}"
        raise UsageError(f"{where} {what}", hint=f"the fields are {', '.join(sorted(known))}")
    same = {"seqlen_k": "seqlen_q", "heads_k": "heads_q", "head_dim_v": "head_dim"}
    fields = {**_DEFAULTS, **{name: entry[other] for name, other in same.items()}, **entry}
    for name in _COUNTS:
        if type(fields[name]) is not int or fields[name] < 1:
            raise UsageError(f"{where}: {name} is {fields[name]!r}", hint="write a positive integer")
    for name, allowed in _WORDS.items():
        if fields[name] not in allowed:
            raise UsageError(f"{where}: {name} is {fields[name]!r}", hint=f"choose of {', '.join(allowed)}")
    if fields["heads_q"] % fields["heads_k"]:
        raise UsageError(f"{where}: heads_q is no multiple of heads_k", hint="each key head serves equally many heads")
    head_dim_v = 0 if fields["head_dim_v"] == fields["head_dim"] else fields["head_dim_v"]  # shapes compare as equal
    return Shape(**{**fields, "name": str(fields["name"]), "head_dim_v": head_dim_v})


# --- selection


def grouped(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Each shape once, those of a group together; groups in the order of their first shapes."""
    unique = tuple(dict.fromkeys(shapes))
    order = list(dict.fromkeys(shape.group for shape in unique))
    return tuple(sorted(unique, key=lambda shape: order.index(shape.group)))


def only(
    shapes: Iterable[Shape], head_dims: Sequence[int] = (), masks: Sequence[str] = (), seqlens: Sequence[int] = ()
) -> tuple[Shape, ...]:
    """Those with one of the values given, where values are given; raises UsageError where none has."""
    found = tuple(
        shape
        for shape in shapes
        if (not head_dims or shape.head_dim in head_dims)
        and (not masks or shape.mask in masks)
        and (not seqlens or shape.seqlen_q in seqlens)
    )
    if not found:
        raise UsageError("no shape is left", hint="give --head-dim, --mask and --seqlen values that the shapes have")
    return found
