"""What is in the tensors that are timed: the same for every implementation.

Time depends on it: bits that change draw power, and a softmax works more where its maxima grow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fa3gen.bench.shapes import Shape

if TYPE_CHECKING:
    from torch import Tensor

#: Keys of one step of growing data: fewer than a tile has, so that each tile has a larger maximum than the one before.
STEP = 64
#: Least growth of a step's scores, in powers of two: beyond what a softmax can leave unscaled in the dtype.
GROWTH = {"bf16": 72.0, "fp16": 24.0}
_QUERY = 32.0


def make(shape: Shape, kind: str = "normal", device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v: contiguous (batch, seqlen, heads, head_dim, or v_dim of v); the same in every run."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape.dtype]
    generator = torch.Generator(device).manual_seed(shape.seqlen_q * 1009 + shape.seqlen_k)

    def normal(seqlen: int, heads: int, head_dim: int) -> Tensor:
        size = (shape.batch, seqlen, heads, head_dim)
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    q = normal(shape.seqlen_q, shape.heads_q, shape.head_dim)
    k, v = (normal(shape.seqlen_k, shape.heads_k, head_dim) for head_dim in (shape.head_dim, shape.v_dim))
    KINDS[kind](shape, q, k)
    return q, k, v


def _normal(shape: Shape, q: Tensor, k: Tensor) -> None:
    pass


def _peaked(shape: Shape, q: Tensor, k: Tensor) -> None:
    """A few keys have much larger scores, of either sign."""
    k[:, 7::211] *= 12


def _growing(shape: Shape, q: Tensor, k: Tensor) -> None:
    """Scores that grow from the last key to the first in steps of ``STEP`` keys, each of at least ``GROWTH``.

    Kernels visit tiles of keys from right to left, so every tile raises the maximum of every row so far that nothing of
    the sums before it is left.  Within a step scores are as of normal data.
    """
    import torch

    # A power of two, so that up to 256 steps (16k keys) are exact in bf16.
    least = GROWTH[shape.dtype] * math.log(2.0) * math.sqrt(shape.head_dim) / _QUERY
    unit = 2.0 ** math.ceil(math.log2(least))
    steps = torch.arange(shape.seqlen_k - 1, -1, -1, device=k.device) // STEP
    q[..., 0] = _QUERY
    k[..., 0] = (steps * unit).to(k.dtype)[None, :, None]


KINDS: dict[str, Callable[[Shape, Tensor, Tensor], None]] = {
    "normal": _normal,
    "peaked": _peaked,
    "growing": _growing,
}
