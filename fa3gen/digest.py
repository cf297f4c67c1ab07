"""Digests: sha256 of bytes, and the one JSON text that a value has."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> str:
    """``value`` as JSON, equal for equal values; TypeError or ValueError for what has no such text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
