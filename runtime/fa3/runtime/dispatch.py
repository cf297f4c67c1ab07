"""From what a call asks for to the kernel that does it, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fa3.contract import KernelEntry, Key
from fa3.runtime.errors import BundleError, VariantNotBuilt

#: Kernels that an error lists.
NEAREST = 3


def table(entries: Iterable[KernelEntry]) -> dict[Key, KernelEntry]:
    """``entries`` by key; :class:`BundleError` where two claim the same."""
    found: dict[Key, KernelEntry] = {}
    for entry in entries:
        other = found.setdefault(entry.key, entry)
        if other is not entry:
            raise BundleError(f"kernels {other.name} and {entry.name} have the same key {describe(entry.key)}")
    return found


def lookup(kernels: Mapping[Key, KernelEntry], key: Key, bundle: str, arch: str) -> KernelEntry:
    """The kernel for ``key``; :class:`VariantNotBuilt` naming ``bundle`` where there is none."""
    entry = kernels.get(key)
    if entry is None:
        raise _miss(kernels, key, bundle, arch)
    return entry


def describe(key: Key) -> str:
    """``fwd: dtype bf16, head_dim 96, mask causal, layout dense``."""
    return f"{key.family}: {', '.join(f'{axis} {value}' for axis, value in _axes(key))}"


def differences(asked: Key, offered: Key) -> tuple[str, ...]:
    """The axes in which two keys differ, with the values: ``head_dim 128, not 96``."""
    pairs = zip(asked._asdict().items(), offered, strict=True)
    return tuple(f"{axis} {_spell(has)}, not {_spell(want)}" for (axis, want), has in pairs if want != has)


def nearest(kernels: Mapping[Key, KernelEntry], key: Key) -> list[KernelEntry]:
    """The kernels that differ from ``key`` in the fewest axes, of these the ones whose head_dim is closest."""

    def distance(entry: KernelEntry) -> tuple[int, int, str]:
        gaps = [abs(a - b) for a, b in zip(head_dims(key), head_dims(entry.key), strict=True)]
        return len(differences(key, entry.key)), sum(gaps), entry.name

    return sorted(kernels.values(), key=distance)[:NEAREST]


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


def _axes(key: Key) -> list[tuple[str, str]]:
    """Every axis but the family, spelled as in YAML; without features that line is left out."""
    axes = [(axis, _spell(value)) for axis, value in key._asdict().items() if axis != "family"]
    return axes if key.features else axes[:-1]


def _spell(value: Sequence[str]) -> str:
    return value if isinstance(value, str) else "+".join(value) or "plain"


def _miss(kernels: Mapping[Key, KernelEntry], key: Key, bundle: str, arch: str) -> VariantNotBuilt:
    near = nearest(kernels, key)
    lines = [f"bundle {bundle} holds no kernel for {describe(key)}"]
    lines += [f"  near: {entry.name} ({'; '.join(differences(key, entry.key))})" for entry in near]
    lines += [
        f"  to have it, add to variants.yaml under families: {key.family}: include:",
        f"      {yaml_line(key)}",
        "  and run fa3gen build, which says so where such a kernel cannot be made",
    ]
    return VariantNotBuilt(
        "\n".join(lines),
        name=kernel_name(key, arch),
        nearest=tuple(entry.name for entry in near),
        yaml=yaml_line(key),
    )
