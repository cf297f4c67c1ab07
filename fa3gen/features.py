"""The registry of features: options that add statements to a family's template without changing its mainloop's structure.

One row a feature, in the order in which features appear in names.  The dense forward needs none yet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """What a feature is: the families that have it and the features it excludes."""

    families: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


FEATURES: dict[str, Feature] = {}
