"""From what a call asks for to the kernel that does it, or to what is missing.

Standard library only: the runtime chooses by it, and the generator's commands say what the runtime would choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa3.contract import SUFFIX_MARK, Extents, KernelEntry, Key

#: The plans of each variant in the order in which a call is held against them; the last serves every call.
Table = Mapping[Key, tuple[KernelEntry, ...]]

#: Kernels that an error lists.
NEAREST = 3

#: The label of a variant's plan for calls of every size.
GENERAL = "general"


@dataclass(frozen=True)
class Miss:
    """What is said where a bundle holds no kernel for a call."""

    message: str
    name: str  # of the kernel that the call would take
    nearest: tuple[str, ...]  # the names of the most similar kernels
    yaml: str  # the line for variants.yaml


def choose(plans: Sequence[KernelEntry], call: Extents) -> KernelEntry:
    """The plan that serves ``call``."""
    return next(plan for plan in plans if plan.when is None or plan.when.fit(call))


def forward_key(dtype: str, head_dim: int, head_dim_v: int, causal: bool) -> Key:
    """The key of a dense forward call with these head dims of q/k and of v."""
    return Key("fwd", dtype, spell_head_dims(head_dim, head_dim_v), "causal" if causal else "full", "dense")


def plan_label(kernel: str) -> str:
    """What tells a kernel from the other plans of its variant: ``m256n64s4``, or ``general``."""
    return kernel.partition(SUFFIX_MARK)[2] or GENERAL


def describe(key: Key) -> str:
    """``fwd: dtype bf16, head_dim 96, mask causal, layout dense``."""
    return f"{key.family}: {', '.join(f'{axis} {value}' for axis, value in _axes(key))}"


def differences(asked: Key, offered: Key) -> tuple[str, ...]:
    """The axes in which two keys differ, with the values: ``head_dim 128, not 96``."""
    pairs = zip(asked._asdict().items(), offered, strict=True)
    return tuple(f"{axis} {_spell(has)}, not {_spell(want)}" for (axis, want), has in pairs if want != has)


def nearest(kernels: Table, key: Key) -> list[KernelEntry]:
    """The kernels that differ from ``key`` in the fewest axes, of these the ones whose head_dim is closest."""

    def distance(entry: KernelEntry) -> tuple[int, int, str]:
        gaps = [abs(a - b) for a, b in zip(head_dims(key), head_dims(entry.key), strict=True)]
        return len(differences(key, entry.key)), sum(gaps), entry.name

    return sorted((plans[-1] for plans in kernels.values()), key=distance)[:NEAREST]


def spell_head_dims(qk: int, v: int) -> str:
    """Head dims of q/k and of v as keys and names have them: ``128``, or ``192x128`` where they differ."""
    return str(qk) if qk == v else f"{qk}x{v}"


def head_dims(key: Key) -> tuple[int, int]:
    """Head dims of q/k and of v."""
    qk, _, v = key.head_dim.partition("x")
    return int(qk), int(v or qk)


def yaml_line(key: Key) -> str:
    """The cell of variants.yaml that stands for ``key``, to go under its family's ``include:``."""
    return f"- {{{', '.join(f'{axis}: {value}' for axis, value in _axes(key))}}}"


def kernel_name(key: Key, arch: str) -> str:
    """The name that the kernel for ``key`` bears."""
    layout = () if key.layout == "dense" else (key.layout,)
    return "_".join([key.family, key.dtype, f"d{key.head_dim}", key.mask, *layout, *key.features, arch])


def miss(kernels: Table, key: Key, bundle: str, arch: str) -> Miss:
    """What there is instead of a kernel for ``key``."""
    near = nearest(kernels, key)
    lines = [f"bundle {bundle} holds no kernel for {describe(key)}"]
    lines += [f"  near: {entry.name} ({'; '.join(differences(key, entry.key))})" for entry in near]
    lines += [
        f"  to have it, add to variants.yaml under families: {key.family}: include:",
        f"      {yaml_line(key)}",
        "  and run fa3gen build, which says so where such a kernel cannot be made",
    ]
    return Miss(
        "\n".join(lines),
        kernel_name(key, arch),
        tuple(entry.name for entry in near),
        yaml_line(key),
    )


def _axes(key: Key) -> list[tuple[str, str]]:
    """Every axis but the family, spelled as in YAML; without features that line is left out."""
    axes = [(axis, _spell(value)) for axis, value in key._asdict().items() if axis != "family"]
    return axes if key.features else axes[:-1]


def _spell(value: Sequence[str]) -> str:
    return value if isinstance(value, str) else "+".join(value) or "plain"
