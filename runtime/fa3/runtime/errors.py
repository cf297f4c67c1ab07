"""What can go wrong in a call or a bundle.

A wrong type of an argument is a ``TypeError`` and a wrong shape, stride or range a ``ValueError``, each naming
argument, value and what is allowed; what follows is everything else.
"""

from __future__ import annotations


class Unsupported(NotImplementedError):
    """The call is meaningful, but this release does not do it; no bundle would change that."""


class VariantNotBuilt(NotImplementedError):
    """The bundle holds no kernel for the call.

    ``name`` is the kernel that it would take, ``nearest`` are the names of the bundle's most similar kernels, ``yaml``
    is the line for variants.yaml.
    """

    def __init__(self, message: str, *, name: str, nearest: tuple[str, ...], yaml: str) -> None:
        super().__init__(message)
        self.name = name
        self.nearest = nearest
        self.yaml = yaml


class GradientNotBuilt(NotImplementedError):
    """A gradient would be needed, and the bundle holds no backward kernel for it."""


class BundleError(RuntimeError):
    """There is no bundle, or it is damaged, or another release wrote it."""


class DeviceError(RuntimeError):
    """This machine or device cannot run the bundle's kernels."""
