"""The registry of features: options that add statements to a family's template and leave its mainloop as it is.

One row a feature, in the order in which features appear in names.  The dense forward needs none yet.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How YAML spells "no feature".
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Feature:
    """What a feature is: the families that have it and the features it excludes."""

    families: tuple[str, ...]
    conflicts: tuple[str, ...] = ()


FEATURES: dict[str, Feature] = {}


def parse_features(text: str) -> tuple[str, ...]:
    """``plain`` or names joined by ``+`` as a tuple in registry order; ValueError where one is unknown or repeated."""
    if text == PLAIN:
        return ()
    names = text.split("+")
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"there is no feature {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"the feature {name!r} is repeated in {text!r}")
    return tuple(name for name in FEATURES if name in names)


def unsupported(family: str, features: tuple[str, ...]) -> str | None:
    """Why ``family`` cannot have these features together; ``None`` where it can."""
    for name in features:
        row = FEATURES[name]
        if family not in row.families:
            return f"feature {name} belongs to {', '.join(row.families)}, not to {family}"
        for other in row.conflicts:
            if other in features:
                return f"feature {name} excludes {other}"
    return None
