"""Tensors of a case: values that try a kernel, in memory laid out as callers lay it out.

What a view leaves out of its buffer is NaN and infinity: none of it may matter.  Outputs lie in buffers of a pattern
that is NaN, so that what is not written and what is written outside shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fa3gen.verify.cases import Case

#: Every 16-bit word of a poisoned buffer; read as bf16, fp16 or (two of them) fp32 it is NaN.
POISON = 0x7FFF
_GUARD = 2048  # elements before and behind a contiguous output
#: (before, behind) in each dim of a padded tensor; keeps 16-byte alignment.
_PADDING = ((1, 1), (3, 70), (1, 1), (8, 24))
#: Elements from one batch to the next where offsets must not be 32-bit.
_FAR = (1 << 31) + 64
#: What the stride of a dim of extent 1 is made; it leads nowhere.
_ODD = (3, 1 << 20, 1, 7)


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor


def make(case: Case, dtype: torch.dtype, head_dim: int, head_dim_v: int, device: torch.device) -> Inputs:
    """q, k and v of ``case``; the same on every device of a kind."""
    generator = torch.Generator(device).manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    q = normal(case.batch, case.seqlen_q, case.heads_q, head_dim)
    k = normal(case.batch, case.seqlen_k, case.heads_k, head_dim)
    v = normal(case.batch, case.seqlen_k, case.heads_k, head_dim_v)
    return LAYOUTS[case.layout](*(tensor.to(dtype) for tensor in VALUES[case.values](q, k, v)))


# --- values: what is done to normal ones


def _large(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Scores of some hundreds: a softmax of nearly one key, and sums that overflow without the maximum."""
    return Inputs(q * 8, k * 8, v * 4)


def _growing(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Maxima that rise from the last key to the first: blocks are visited from right to left."""
    return Inputs(q, k * _ramp(k, 60.0, 0.1), v)


def _shrinking(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    return Inputs(q, k * _ramp(k, 0.1, 60.0), v)


def _steps(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """As growing, but in steps of 100 keys around the factor 2^8 at which a lazy softmax rescales."""
    position = torch.arange(k.shape[1], device=k.device)
    return Inputs(q * 0.05 + 1.0, (k * 0.05 + 0.4) * (1 + (k.shape[1] - position) // 100).view(1, -1, 1, 1), v)


def _outlier(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """A few keys that take nearly all the weight."""
    k[:, ::97] *= 40
    return Inputs(q, k, v)


def _negative(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Scores far below 0: the zeros that are loaded past the last key would outweigh every key."""
    return Inputs(q.abs() * 3, -k.abs() * 3, v)


def _constant(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Equal scores: the mean of the values that are seen."""
    return Inputs(torch.zeros_like(q), k, v)


def _offset(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Values far from 0."""
    return Inputs(q, k, v + 100)


def _rising(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Scores that rise by a factor 2^0.3 a key from the last to the first."""
    return _profile(q, k, v, 0.3 * _behind(k))


def _soaring(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """As rising, by 2^3: no float32 holds what a block's exponentials are relative to the one before."""
    return _profile(q, k, v, 3.0 * _behind(k))


def _jump(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """The first keys, which are visited last, are 2^300 times as heavy as all others."""
    return _profile(q, k, v, 300.0 * (_behind(k) >= k.shape[1] - 5))


def _sink(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """The first key is 2^20 times as heavy as the others."""
    return _profile(q, k, v, 20.0 * (_behind(k) >= k.shape[1] - 1))


def _tower(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """The first key is 2^45 times as heavy as the others: its value alone counts, and may not be rounded."""
    return _profile(q, k, v, 45.0 * (_behind(k) >= k.shape[1] - 1))


def _leaps(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Keys of the left half are heavier, by 2^70 in the first head of k and 2^4 more in each further one."""
    _profile(q, k, v, torch.zeros(k.shape[1], device=k.device))
    for head in range(k.shape[2]):
        left = (70.0 + 4 * head) * (_behind(k) >= k.shape[1] // 2)
        k[:, :, head, 0] = left * _weight(k)
    return Inputs(q, k, v)


def _anchored(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """The last key, which is visited first, outweighs each other by 2^18; together those still count."""
    return _profile(q, k, v + 0.5, 18.0 * (_behind(k) == 0))


def _self(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """As anchored, but for each query its own key, the last that it sees under a causal mask."""
    rows, ratio = min(q.shape[1], k.shape[1]), q.shape[2] // k.shape[2]
    own = q[:, q.shape[1] - rows :, ::ratio]
    k[:, k.shape[1] - rows :] += own * (18.0 * _weight(k) * 8.0 / own.square().sum(-1, keepdim=True))
    return Inputs(q, k, v + 0.5)


def _hidden(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Scores of -inf for the last third of the keys, as a bias that hides them would make."""
    inputs = _profile(q, k, v, torch.zeros(k.shape[1], device=k.device))
    k[:, k.shape[1] - k.shape[1] // 3 :, :, 0] = -torch.inf
    return inputs


def _stairs(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """As tower, after a rise of all keys of the left half by 2^40."""
    return _profile(q, k, v, 40.0 * (_behind(k) >= k.shape[1] // 2) + 20.0 * (_behind(k) >= k.shape[1] - 1))


def _mixed(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Every other head of k as soaring."""
    soaring = _soaring(q, k.clone(), v)
    k[..., 0] = 0
    k[:, :, ::2] = soaring.k[:, :, ::2]
    return Inputs(soaring.q, k, v)


def _heavy(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """As rising, and values near the end of bfloat16's range."""
    return _rising(q, k, v * 1e30)


def _profile(q: Tensor, k: Tensor, v: Tensor, log2_weight: Tensor) -> Inputs:
    """Adds ``log2_weight`` of each key to its scores (in base 2, with the default scale)."""
    q[..., 0] = 8.0
    k[..., 0] = (log2_weight * _weight(k)).view(1, -1, 1)
    return Inputs(q, k, v)


def _weight(k: Tensor) -> float:
    """What k times 8 must be for a factor of 2 (with the default scale)."""
    return math.sqrt(k.shape[-1]) / (8.0 * math.log2(math.e))


def _behind(k: Tensor) -> Tensor:
    """How many keys lie behind each."""
    return torch.arange(k.shape[1] - 1, -1, -1, device=k.device)


def _ramp(k: Tensor, first: float, last: float) -> Tensor:
    return torch.linspace(first, last, k.shape[1], device=k.device).view(1, -1, 1, 1)


VALUES: dict[str, Callable[[Tensor, Tensor, Tensor], Inputs]] = {
    "normal": Inputs,
    "large": _large,
    "growing": _growing,
    "shrinking": _shrinking,
    "steps": _steps,
    "rising": _rising,
    "soaring": _soaring,
    "jump": _jump,
    "sink": _sink,
    "tower": _tower,
    "stairs": _stairs,
    "leaps": _leaps,
    "anchored": _anchored,
    "self": _self,
    "hidden": _hidden,
    "mixed": _mixed,
    "heavy": _heavy,
    "outlier": _outlier,
    "negative": _negative,
    "constant": _constant,
    "offset": _offset,
}


# --- layouts of (batch, seqlen, heads, head_dim)


def _each(place: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Inputs]:
    return lambda q, k, v: Inputs(place(q), place(k), place(v))


def _heads_first(tensor: Tensor) -> Tensor:
    """(batch, heads, seqlen, head_dim) in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _seqlen_first(tensor: Tensor) -> Tensor:
    """(seqlen, batch, heads, head_dim) in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def _padded(tensor: Tensor) -> Tensor:
    """The inside of a larger tensor of NaN and infinities."""
    shape = [before + extent + behind for (before, behind), extent in zip(_PADDING, tensor.shape, strict=True)]
    buffer = torch.full(shape, torch.nan, dtype=tensor.dtype, device=tensor.device)
    buffer[:, ::2] = torch.inf
    view = _inside(buffer, tensor.shape)
    view.copy_(tensor)
    return view


def _odd_ones(tensor: Tensor) -> Tensor:
    """Strides that no element uses are odd."""
    return tensor.as_strided(tensor.shape, _odd_strides(tensor))


def _far(tensor: Tensor) -> Tensor:
    """Batches more than 2^31 elements apart."""
    batch, seqlen, heads, head_dim = tensor.shape
    size = (batch - 1) * _FAR + seqlen * heads * head_dim
    buffer = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
    view = buffer.as_strided(tensor.shape, (_FAR, heads * head_dim, head_dim, 1))
    view.copy_(tensor)
    return view


def _packed(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Slices of one projection."""
    heads_q, heads_k = q.shape[2], k.shape[2]
    packed = torch.cat((q, k, v), dim=2)
    return Inputs(packed[:, :, :heads_q], packed[:, :, heads_q : heads_q + heads_k], packed[:, :, heads_q + heads_k :])


def _paired(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """k and v of a cache (batch, 2, seqlen, heads, head_dim)."""
    return Inputs(q, *torch.stack((k, v), dim=1).unbind(1))


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """Slices of one projection, v's head_dim being another."""
    parts = [tensor.flatten(2) for tensor in (q, k, v)]
    fused = torch.cat(parts, dim=2)
    ends = [sum(part.shape[2] for part in parts[: i + 1]) for i in range(3)]
    slices = [fused[:, :, end - part.shape[2] : end] for part, end in zip(parts, ends, strict=True)]
    return Inputs(*(part.view(tensor.shape) for part, tensor in zip(slices, (q, k, v), strict=True)))


def _beside(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """k and v of a head beside each other, as a projection gives them: (batch, seqlen, heads, both dims)."""
    both = torch.cat((k, v), dim=3)
    return Inputs(q, both[..., : k.shape[3]], both[..., k.shape[3] :])


def _shared_batch(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """One k and v for the whole batch, by stride 0."""
    return Inputs(q, k[:1].expand(k.shape), v[:1].expand(v.shape))


def _shared_heads(q: Tensor, k: Tensor, v: Tensor) -> Inputs:
    """One key/value head spelled as many, by stride 0."""
    return Inputs(q, k[:, :, :1].expand(k.shape), v[:, :, :1].expand(v.shape))


LAYOUTS: dict[str, Callable[[Tensor, Tensor, Tensor], Inputs]] = {
    "contiguous": Inputs,
    "heads_first": _each(_heads_first),
    "seqlen_first": _each(_seqlen_first),
    "padded": _each(_padded),
    "odd_ones": _each(_odd_ones),
    "far": _each(_far),
    "packed": _packed,
    "paired": _paired,
    "fused": _fused,
    "beside": _beside,
    "shared_batch": _shared_batch,
    "shared_heads": _shared_heads,
}


# --- outputs


@dataclass(frozen=True)
class Guarded:
    """An output inside a poisoned buffer."""

    view: Tensor
    _words: Tensor  # the buffer's 16-bit words
    _inside: Tensor  # true for the words of the view

    def unwritten(self) -> int:
        """Elements of the output that are still poison, all words of them: half of an fp32 may well look like it."""
        poisoned = (self._words == POISON) & self._inside
        return int(poisoned.reshape(-1, self.view.dtype.itemsize // 2).all(dim=-1).sum())

    def touched(self) -> int:
        """Words around the output that are not."""
        return int(((self._words != POISON) & ~self._inside).sum())


def guarded(shape: Sequence[int], dtype: torch.dtype, device: torch.device, layout: str = "contiguous") -> Guarded:
    """A poisoned output of ``shape``, laid out as far as ``layout`` applies to a tensor that is written."""
    buffer, view = _OUTPUTS.get(layout, _contiguous_output)(shape, dtype, device)
    words = buffer.view(torch.int16)
    words.fill_(POISON)
    inside = torch.zeros(buffer.shape, dtype=torch.int8, device=device)
    inside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(1)
    inside = inside.repeat_interleave(words.shape[-1] // buffer.shape[-1], dim=-1) if dtype.itemsize > 2 else inside
    return Guarded(view, words, inside.bool())


def _contiguous_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    size = torch.Size(shape).numel()
    buffer = torch.empty(size + 2 * _GUARD, dtype=dtype, device=device)
    return buffer, buffer[_GUARD : _GUARD + size].view(*shape)


def _heads_first_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    batch, seqlen, heads, head_dim = shape
    buffer, view = _contiguous_output((batch, heads, seqlen, head_dim), dtype, device)
    return buffer, view.transpose(1, 2)


def _odd_ones_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    buffer, view = _contiguous_output(shape, dtype, device)
    return buffer, view.as_strided(view.shape, _odd_strides(view), view.storage_offset())


def _padded_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    padding = _PADDING[4 - len(shape) :]
    whole = [before + extent + behind for (before, behind), extent in zip(padding, shape, strict=True)]
    buffer = torch.empty(whole, dtype=dtype, device=device)
    return buffer, _inside(buffer, shape)


def _far_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    batch, seqlen, heads, head_dim = shape
    buffer = torch.empty((batch - 1) * _FAR + seqlen * heads * head_dim, dtype=dtype, device=device)
    return buffer, buffer.as_strided(tuple(shape), (_FAR, heads * head_dim, head_dim, 1))


_OUTPUTS: dict[str, Callable[[Sequence[int], torch.dtype, torch.device], tuple[Tensor, Tensor]]] = {
    "heads_first": _heads_first_output,
    "odd_ones": _odd_ones_output,
    "padded": _padded_output,
    "far": _far_output,
}


def _inside(buffer: Tensor, shape: Sequence[int]) -> Tensor:
    padding = _PADDING[4 - len(shape) :]
    for axis, ((before, _), extent) in enumerate(zip(padding, shape, strict=True)):
        buffer = buffer.narrow(axis, before, extent)
    return buffer


def _odd_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of ``tensor``, those of dims of extent 1 replaced (not the last dim's)."""
    *outer, _ = zip(tensor.shape, tensor.stride(), _ODD, strict=True)
    return (*(odd if extent == 1 else stride for extent, stride, odd in outer), 1)
