"""The kernel that is verified, on the device where it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from fa3.choice import head_dims
from fa3.contract import KernelEntry
from fa3.runtime.bundle import Bundle, ReadyKernel
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Target:
    entry: KernelEntry
    bundle: Bundle
    device: torch.device

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.entry.key.dtype]

    @property
    def head_dim(self) -> int:
        return head_dims(self.entry.key)[0]

    @property
    def head_dim_v(self) -> int:
        return head_dims(self.entry.key)[1]

    @property
    def causal(self) -> bool:
        return self.entry.key.mask == "causal"

    @property
    def num_sms(self) -> int:
        return self._ready.num_sms

    @cached_property
    def _ready(self) -> ReadyKernel:
        return self.bundle.load(self.entry, self.bundle.native.device("device", self.device))

    def launch(
        self,
        sm_margin: int,
        softmax_scale: float | None,
        inputs: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """The kernel alone, on torch's current stream."""
        scale = 1.0 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale
        self._ready.launch(sm_margin, scale, *inputs, out, lse)
