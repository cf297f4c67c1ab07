"""The problems that are timed, and their arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from fa3gen.errors import UsageError

DTYPES = ("bf16", "fp16")
HEAD_DIMS = (64, 128, 256)
MASKS = ("full", "causal")
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class Shape:
    """Self-attention of (batch, seqlen, heads, head_dim) tensors."""

    dtype: str
    head_dim: int
    mask: str
    batch: int
    seqlen: int
    heads: int

    @property
    def causal(self) -> bool:
        return self.mask == "causal"

    @property
    def flops(self) -> float:
        """Of the two products; a causal mask counts as half of them."""
        return 4.0 * self.batch * self.heads * self.seqlen**2 * self.head_dim * (0.5 if self.causal else 1.0)

    def tflops(self, milliseconds: float) -> float:
        """TFLOP/s of a call that takes ``milliseconds``."""
        return self.flops / milliseconds / 1e9


#: So small that a call's time is the host's.
TINY = Shape("bf16", 128, "causal", batch=1, seqlen=64, heads=8)


def grid(
    dtype: str, head_dims: Sequence[int], masks: Sequence[str], seqlens: Sequence[int], tokens: int, width: int
) -> tuple[Shape, ...]:
    """Shapes of ``tokens`` = batch x seqlen and ``width`` = heads x head_dim; raises UsageError where one is none."""
    for name, value, parts in (("--width", width, head_dims), ("--tokens", tokens, seqlens)):
        for part in parts:
            if part < 1 or value < part or value % part:
                raise UsageError(f"{name} {value} is no multiple of {part}", hint=f"choose a multiple with {name}")
    return tuple(
        Shape(dtype, head_dim, mask, tokens // seqlen, seqlen, width // head_dim)
        for head_dim, mask, seqlen in product(head_dims, masks, seqlens)
    )
