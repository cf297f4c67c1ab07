"""From a call to its kernel, and what a miss says."""

from __future__ import annotations

from pathlib import Path

import pytest
from fa3.choice import choose, forward_key, kernel_name, plan_label
from fa3.contract import Extents, Key
from fa3.runtime import dispatch
from fa3.runtime.bundle import ARGUMENTS
from fa3.runtime.errors import BundleError, VariantNotBuilt

from fa3gen.abi import signature
from fa3gen.bundle import dispatch_key
from fa3gen.matrix import load
from fa3gen.model import parse_name
from fa3gen.plan import resolve
from tests.runtime_bundle import ARCH, KEYS, entry, plans

SHIPPED = Path(__file__).parents[1] / "variants.yaml"
TABLE = dispatch.table(entry(key) for key in KEYS)


def miss(key: Key) -> VariantNotBuilt:
    with pytest.raises(VariantNotBuilt) as caught:
        dispatch.lookup(TABLE, key, "some/bundle", ARCH)
    return caught.value


def test_every_cell_of_the_matrix_reaches_its_kernel() -> None:
    variants = load(SHIPPED).variants
    table = dispatch.table(entry(dispatch_key(variant)) for variant in variants)
    assert len(table) == len(variants) > 0
    for variant in variants:
        assert [plan.name for plan in dispatch.lookup(table, dispatch_key(variant), "bundle", ARCH)] == [variant.name]


def test_launch_arguments_are_those_of_the_kernels() -> None:
    for variant in load(SHIPPED).variants:
        kernel = signature(resolve(variant))
        assert ARGUMENTS[variant.family.value] == (kernel.tensors, kernel.scalars)
        assert kernel.optional == ("lse",)


def test_two_kernels_for_one_key_are_refused() -> None:
    with pytest.raises(BundleError, match=r"kernels (\w+) and \1 answer the same calls"):
        dispatch.table([entry(KEYS[0]), entry(KEYS[1]), entry(KEYS[0], b"other")])


def test_a_call_takes_the_first_plan_that_it_fits() -> None:
    further = (("__n64", {"max_seqlen_k": 2047, "min_batch": 2}), ("__n96", {"max_seqlen_k": 4095}))
    (plans_of_key,) = dispatch.table(plans(KEYS[0], further)[::-1]).values()

    def chosen(batch: int, seqlen_k: int) -> str:
        return choose(plans_of_key, Extents(batch, 64, seqlen_k, 4, 4)).name.partition("__")[2]

    assert [chosen(2, 2047), chosen(1, 2047), chosen(2, 2048)] == ["n64", "n96", "n96"]
    assert [chosen(2, 4095), chosen(2, 4096), chosen(0, 0)] == ["n96", "", "n96"]


def test_labels_of_plans() -> None:
    assert [plan_label(plan.name) for plan in plans(KEYS[0], [("__n64", {"max_batch": 2})])] == ["n64", "general"]


def test_keys_of_forward_calls() -> None:
    assert forward_key("bf16", 64, 64, False) == Key("fwd", "bf16", "64", "full", "dense")
    assert forward_key("fp16", 192, 128, True) == Key("fwd", "fp16", "192x128", "causal", "dense")


def test_a_miss_names_general_plans_only() -> None:
    table = dispatch.table([plan for key in KEYS for plan in plans(key, [("__n64", {"max_batch": 2})])])
    with pytest.raises(VariantNotBuilt) as caught:
        dispatch.lookup(table, KEYS[0]._replace(head_dim="96"), "bundle", ARCH)
    assert not any("__" in name for name in caught.value.nearest)
    assert "__" not in str(caught.value)


def test_miss_is_a_not_implemented_error_and_a_runtime_error() -> None:
    error = miss(KEYS[0]._replace(head_dim="96"))
    assert isinstance(error, NotImplementedError)
    assert isinstance(error, RuntimeError)


def test_miss_text() -> None:
    assert str(miss(Key("fwd", "bf16", "96", "causal", "dense"))) == (
        "bundle some/bundle holds no kernel for fwd: dtype bf16, head_dim 96, mask causal, layout dense\n"
        "  near: fwd_bf16_d128_causal_sm90a (head_dim 128, not 96)\n"
        "  near: fwd_bf16_d64_causal_sm90a (head_dim 64, not 96)\n"
        "  near: fwd_bf16_d128_full_sm90a (head_dim 128, not 96; mask full, not causal)\n"
        "  to have it, add to variants.yaml under families: fwd: include:\n"
        "      - {dtype: bf16, head_dim: 96, mask: causal, layout: dense}\n"
        "  and run fa3gen build, which says so where such a kernel cannot be made"
    )


def test_miss_prefers_few_differences_then_close_head_dims() -> None:
    error = miss(Key("fwd", "fp16", "100", "full", "dense"))
    assert error.nearest == ("fwd_fp16_d128_full_sm90a", "fwd_fp16_d64_full_sm90a", "fwd_bf16_d128_full_sm90a")
    assert miss(Key("fwd", "fp16", "192x128", "full", "dense")).nearest[0] == "fwd_fp16_d128_full_sm90a"


def test_miss_spells_features() -> None:
    error = miss(Key("fwd", "bf16", "64", "full", "varlen", ("split", "softcap")))
    assert error.yaml == "- {dtype: bf16, head_dim: 64, mask: full, layout: varlen, features: split+softcap}"
    assert "near: fwd_bf16_d64_full_sm90a (layout dense, not varlen; features plain, not split+softcap)" in str(error)
    assert error.name == "fwd_bf16_d64_full_varlen_split_softcap_sm90a"


def test_miss_in_an_empty_bundle() -> None:
    with pytest.raises(VariantNotBuilt, match="holds no kernel") as caught:
        dispatch.lookup({}, KEYS[0], "bundle", ARCH)
    assert caught.value.nearest == ()


def test_names_are_the_generator_s() -> None:
    for variant in load(SHIPPED).variants:
        assert kernel_name(dispatch_key(variant), ARCH) == variant.name
        assert parse_name(miss(dispatch_key(variant)._replace(head_dim="40")).name).head_dim.qk == 40


def test_yaml_line_gives_the_kernel(tmp_path: Path) -> None:
    """Take each kernel out of the shipped file and put it back with the line of the error that its absence causes."""
    text = SHIPPED.read_text()
    assert text.count("\npresets:") == 1
    for variant in load(SHIPPED).variants:
        key = dispatch_key(variant)
        with pytest.raises(VariantNotBuilt) as caught:
            dispatch.lookup({}, key, "bundle", ARCH)
        cell = f"{{dtype: {key.dtype}, head_dim: {key.head_dim}, mask: {key.mask}, reason: try}}"
        config = tmp_path / "variants.yaml"
        head = text.partition("\npresets:")[0]
        assert head.count("    exclude:\n") == 1
        without = head.replace("    exclude:\n", f"    exclude:\n      - {cell}\n")
        config.write_text(f"{without}\n")
        assert variant not in load(config).variants
        config.write_text(f"{without}\n    include:\n      {caught.value.yaml}\n")
        assert variant in load(config).variants
