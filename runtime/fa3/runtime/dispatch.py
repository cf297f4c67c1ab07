"""The table in which a bundle's calls find their plans, and the error where one finds none."""

from __future__ import annotations

from collections.abc import Iterable

from fa3 import choice
from fa3.choice import Table
from fa3.contract import KernelEntry, Key, ManifestError, plans_by_key
from fa3.runtime.errors import BundleError, VariantNotBuilt


def table(entries: Iterable[KernelEntry]) -> Table:
    """The plans for each key; :class:`BundleError` where a call could mean two kernels or find none."""
    try:
        return plans_by_key(entries)
    except ManifestError as error:
        raise BundleError(str(error)) from error


def lookup(kernels: Table, key: Key, bundle: str, arch: str) -> tuple[KernelEntry, ...]:
    """The plans for ``key``; :class:`VariantNotBuilt` naming ``bundle`` where there is none."""
    plans = kernels.get(key)
    if plans is None:
        miss = choice.miss(kernels, key, bundle, arch)
        raise VariantNotBuilt(miss.message, name=miss.name, nearest=miss.nearest, yaml=miss.yaml)
    return plans
