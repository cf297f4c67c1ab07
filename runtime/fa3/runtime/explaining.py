"""What an attention call would get, without making it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fa3 import explanation
from fa3.contract import Extents, Key
from fa3.explanation import Explanation
from fa3.runtime import api, autograd, request
from fa3.runtime import bundle as bundles
from fa3.runtime.errors import GradientNotBuilt, Unsupported

if TYPE_CHECKING:
    from typing_extensions import Unpack

    class Arguments(api.Options, total=False):
        """The keyword arguments of :func:`fa3.runtime.attention`."""

        return_lse: bool


_SIGNATURE = inspect.signature(api.attention)


def explain(q: Tensor, k: Tensor, v: Tensor, **arguments: Unpack[Arguments]) -> Explanation:
    """Which kernel ``attention(q, k, v, **arguments)`` takes and why, or what is missing.

    Nothing is launched and no GPU is needed: the tensors may be on any device, meta included, and may be fake.  Only
    their dtypes and shapes count; addresses, strides, and whether their device can run the kernel are not looked at.

    Print the result, or see its fields (:class:`fa3.runtime.Explanation`).  What ``attention`` answers with
    ``Unsupported``, ``VariantNotBuilt`` or ``GradientNotBuilt`` is the ``reason`` of a result without a kernel.

    Raises ``TypeError`` for wrong types and arguments that there are not, ``ValueError`` for shapes and ranges, and
    ``BundleError`` where there is no bundle.
    """
    given = _SIGNATURE.bind(q, k, v, **arguments)
    given.apply_defaults()
    try:
        key = _key(given.arguments)
    except (GradientNotBuilt, Unsupported) as error:
        return Explanation(str(error))
    bundle = given.arguments["bundle"] or bundles.default_bundle()
    return explanation.explain(bundle.kernels, key, _extents(q, k), bundle.name, bundle.manifest.arch)


def _key(given: dict[str, Any]) -> Key:
    """What the call asks for, its arguments checked as far as that needs no device."""
    q, k, v, out, causal = (given[name] for name in ("q", "k", "v", "out", "causal"))
    request.check_neutral(**{name: given[name] for name in request.NEUTRAL})
    causal = request.check_window(given["window_size"], causal)
    if given["bundle"] is not None:
        bundles.check_bundle(given["bundle"])
    autograd.check(q, k, v, out)
    key = request.checked_key(q, k, v, causal)
    if given["softmax_scale"] is not None:
        request.check_scale(given["softmax_scale"])
    request.check_sm_margin(given["sm_margin"], None)
    if out is not None:
        request.check_out(out, q, v)
    return key


def _extents(q: Tensor, k: Tensor) -> Extents:
    batch, seqlen_q, heads_q, _ = q.shape
    return Extents(int(batch), int(seqlen_q), int(k.shape[1]), int(heads_q), int(k.shape[2]))
