"""Attention from a bundle of precompiled kernels::

fa3.runtime.load_bundle("bundle")
out = fa3.runtime.attention(q, k, v, causal=True)
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        'fa3.runtime needs PyTorch: install torch for your CUDA version, or pip install "fa3-runtime[torch]"',
        name="torch",
    ) from error

from fa3.explanation import Explanation
from fa3.runtime import reference
from fa3.runtime.api import attention
from fa3.runtime.bundle import Bundle, load_bundle
from fa3.runtime.errors import BundleError, DeviceError, GradientNotBuilt, Unsupported, VariantNotBuilt
from fa3.runtime.explaining import explain

__all__ = [
    "Bundle",
    "BundleError",
    "DeviceError",
    "Explanation",
    "GradientNotBuilt",
    "Unsupported",
    "VariantNotBuilt",
    "attention",
    "explain",
    "load_bundle",
    "reference",
]
