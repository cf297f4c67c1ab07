"""Every way a configuration, a rule file, a selection or a plan can be wrong: code, place and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fa3gen import config, matrix, plan
from fa3gen.errors import CODES, ConfigError, Diagnostic, DiagnosticError, ExitCode, Location, MachineError, nearest
from fa3gen.model import Layout, Toolchain, parse_name

HEAD = "schema: 1\ntoolchain: cu12\ndefaults: {mask: causal}\n"  # lines 1 to 3
FWD = HEAD + "families:\n  fwd:\n    axes: {dtype: [bf16, fp16], head_dim: [64, 128]}\n"  # lines 4 to 6
RULES = "schema: 1\nrules:\n"  # lines 1 and 2
D128 = "fwd_bf16_d128_causal_sm90a"

Problem = tuple[str, int, int, str]  # code, line, column, message

# id -> (file, its problems)
BAD_CONFIGS: dict[str, tuple[str, list[Problem]]] = {
    "unclosed list": ("schema: [1\n", [("C002", 2, 1, "no YAML: expected ',' or ']', but got '<stream end>'")]),
    "tab": (
        "schema: 1\n\ttoolchain: cu12\n",
        [("C002", 2, 1, "no YAML: found character '\\t' that cannot start any token")],
    ),
    "two documents": ("a: 1\n---\nb: 1\n", [("C002", 2, 1, "no YAML: but found another document")]),
    "control character": ("schema: 1\ntool\x07: 1\n", [("C002", 2, 5, "no YAML: the character U+0007 is not allowed")]),
    "undefined alias": ("schema: *one\n", [("C002", 1, 9, "no YAML: found undefined alias 'one'")]),
    "nested deeply": ("[" * 5000, [("C002", 1, 1, "no YAML for fa3gen: it is nested too deeply")]),
    "duplicate key": (FWD + "toolchain: cu13\n", [("C003", 7, 1, "the file gives 'toolchain' twice; first at line 2")]),
    "duplicate family": (
        FWD + "  fwd: {axes: {dtype: bf16, head_dim: 64}}\n",
        [("C003", 7, 3, "families gives 'fwd' twice; first at line 5")],
    ),
    "duplicate axis": (
        HEAD + "families: {fwd: {axes: {dtype: bf16, head_dim: 64, dtype: fp16}}}\n",
        [("C003", 4, 52, "fwd.axes gives 'dtype' twice; first at line 4")],
    ),
    "duplicate preset": (
        FWD + "presets:\n  a: {dtype: bf16}\n  a: {dtype: fp16}\n",
        [("C003", 9, 3, "presets gives 'a' twice; first at line 8")],
    ),
    "unknown top key": (FWD + "preset: {}\n", [("C004", 7, 1, "the file has no key 'preset'")]),
    "unknown family": (FWD + "  fwdd: {}\n", [("C004", 7, 3, "families has no key 'fwdd'")]),
    "unknown family key": (FWD + "    excludes: []\n", [("C004", 7, 5, "fwd has no key 'excludes'")]),
    "unknown axis": (
        HEAD + "families: {fwd: {axes: {dtype: bf16, head_dims: 64}}}\n",
        [("C004", 4, 38, "fwd.axes has no key 'head_dims'")],
    ),
    "reason in include": (
        FWD + "    include: {head_dim: 256, reason: none}\n",
        [("C004", 7, 30, "fwd.include has no key 'reason'")],
    ),
    "merge key": (FWD + "presets:\n  a: {<<: {dtype: bf16}}\n", [("C004", 8, 7, "preset a has no key '<<'")]),
    "a list for the file": ("- 1\n", [("C005", 1, 1, "the file must be a mapping, not a list")]),
    "families null": (HEAD + "families:\n", [("C005", 4, 10, "families must be a mapping, not nothing")]),
    "axes a list": (
        HEAD + "families: {fwd: {axes: [bf16]}}\n",
        [("C005", 4, 24, "fwd.axes must be a mapping, not a list")],
    ),
    "nested list": (
        HEAD + "families: {fwd: {axes: {dtype: [[bf16]], head_dim: 64}}}\n",
        [("C005", 4, 33, "fwd.axes.dtype must be a single value, not a list")],
    ),
    "list as key": (
        FWD + "presets:\n  ? [a]\n  : {dtype: bf16}\n",
        [("C005", 8, 5, "a key of presets must be a single value, not a list")],
    ),
    "reason a list": (
        FWD + "    exclude: {dtype: bf16, reason: [a]}\n",
        [("C005", 7, 36, "fwd.exclude.reason must be a single value, not a list")],
    ),
    "schema a list": (
        FWD.replace("schema: 1", "schema: [1]"),
        [("C005", 1, 9, "schema must be a single value, not a list")],
    ),
    "unknown toolchain": (FWD.replace("cu12", "cuda12"), [("C006", 2, 12, "toolchain has no value 'cuda12'")]),
    "unknown dtype": (FWD.replace("fp16", "fb16"), [("C006", 6, 26, "dtype has no value 'fb16'")]),
    "unknown default": (FWD.replace("mask: causal", "mask: casual"), [("C006", 3, 18, "mask has no value 'casual'")]),
    "head_dim spelled twice": (
        FWD.replace("[64, 128]", "[64, 128x128]"),
        [("C006", 6, 48, "head_dim '128x128': equal dims are spelled 128")],
    ),
    "head_dim no number": (
        FWD.replace("[64, 128]", "big"),
        [("C006", 6, 43, "head_dim 'big' is not spelled like 128 or 192x128")],
    ),
    "unknown feature": (
        FWD + "    include: {head_dim: 256, features: split+rope}\n",
        [("C006", 7, 40, "there is no feature 'split'")],
    ),
    "unknown policy": (FWD + "    on_unsupported: ignore\n", [("C006", 7, 21, "on_unsupported has no value 'ignore'")]),
    "no schema": (FWD.replace("schema: 1\n", ""), [("C007", 1, 1, "the file needs the key 'schema'")]),
    "no families": (HEAD, [("C007", 1, 1, "the file needs the key 'families'")]),
    "no family": (HEAD + "families: {}\n", [("C007", 4, 11, "families names no family")]),
    "no axes": (HEAD + "families: {fwd: {}}\n", [("C007", 4, 17, "fwd needs the key 'axes'")]),
    "no dtype": (HEAD + "families: {fwd: {axes: {head_dim: 64}}}\n", [("C007", 4, 18, "fwd has no dtype")]),
    "no mask in include": (
        FWD.replace("defaults: {mask: causal}\n", "").replace("axes: {", "axes: {mask: full, ")
        + "    include: {dtype: bf16, head_dim: 256}\n",
        [("C007", 6, 14, "fwd has no mask")],
    ),
    "axis without value": (
        HEAD + "families: {fwd: {axes: {dtype: , head_dim: 64}}}\n",
        [("C007", 4, 31, "fwd.axes.dtype has no value")],
    ),
    "no reason": (FWD + "    exclude: {dtype: bf16}\n", [("C007", 7, 14, "fwd.exclude needs the key 'reason'")]),
    "blank reason": (
        FWD + "    exclude: {dtype: bf16, reason: ' '}\n",
        [("C007", 7, 36, "fwd.exclude.reason has no value")],
    ),
    "exclude of everything": (
        FWD + "    exclude: {reason: nobody needs it}\n",
        [("C007", 7, 14, "fwd.exclude names no axis")],
    ),
    "newer schema": (FWD.replace("schema: 1", "schema: 2"), [("C008", 1, 9, "schema 2: this fa3gen reads schema 1")]),
    "empty axis": (FWD.replace("[64, 128]", "[]"), [("C009", 6, 43, "fwd.axes.head_dim is an empty list")]),
    "empty preset": (FWD + "presets: {a: []}\n", [("C009", 7, 14, "preset a is an empty list")]),
    "value twice": (FWD.replace("[64, 128]", "[64, 128, 64]"), [("C010", 6, 53, "fwd.axes.head_dim lists 64 twice")]),
    "exclude of nothing": (
        FWD + "    exclude:\n      - {head_dim: 256, reason: too slow}\n",
        [("C020", 8, 9, "this exclude matches none of the 4 cells of the axes")],
    ),
    "include of a cell of the axes": (
        FWD + "    include: {dtype: bf16, head_dim: [128, 256]}\n",
        [("C021", 7, 14, f"this include repeats {D128}; first at line 6")],
    ),
    "include of an included cell": (
        FWD + "    include:\n      - {dtype: bf16, head_dim: 256}\n      - {dtype: bf16, head_dim: 256}\n",
        [("C021", 9, 9, "this include repeats fwd_bf16_d256_causal_sm90a; first at line 8")],
    ),
    "include of a skipped cell": (
        FWD.replace("128]", "80]") + "    on_unsupported: skip\n    include: {dtype: bf16, head_dim: 80}\n",
        [("C021", 8, 14, "this include repeats fwd_bf16_d80_causal_sm90a; first at line 6")],
    ),
    "unsupported cells": (
        FWD.replace("128]", "80]"),
        [
            (
                "C022",
                6,
                5,
                "fwd_bf16_d80_causal_sm90a, fwd_fp16_d80_causal_sm90a: head_dim 80:"
                " fwd has 64, 96, 128, 192, 256, 192x128, 64x256",
            )
        ],
    ),
    "preset of nothing": (
        FWD + "presets: {a: [{dtype: bf16}, {head_dim: 256}]}\n",
        [("C023", 7, 30, "preset a: this selects none of the 4 kernels")],
    ),
    "preset of what is excluded": (
        FWD + "    exclude: {head_dim: 64, reason: too small}\npresets: {a: {head_dim: 64}}\n",
        [("C023", 8, 14, "preset a: this selects none of the 2 kernels (left out: too small)")],
    ),
    "everything excluded": (
        FWD + "    exclude: {mask: causal, reason: no time}\n",
        [("C024", 1, 1, "the matrix is empty")],
    ),
    "everything at once": (
        FWD.replace("cu12", "cu11").replace("1\n", "2\n", 1)
        + "    exclude:\n      - {head_dim: 256, reason: too slow}\n      - {dtype: bf16, reason: old}\n"
        + "    include: {dtype: fp16, head_dim: 64}\n"
        + "presets:\n  a: {head_dim: 256}\n  a: {dtype: fp16}\n  b: {colour: red}\n",
        [
            ("C008", 1, 9, "schema 2: this fa3gen reads schema 1"),
            ("C006", 2, 12, "toolchain has no value 'cu11'"),
            ("C020", 8, 9, "this exclude matches none of the 4 cells of the axes"),
            ("C021", 10, 14, "this include repeats fwd_fp16_d64_causal_sm90a; first at line 6"),
            ("C023", 12, 6, "preset a: this selects none of the 2 kernels"),
            ("C003", 13, 3, "presets gives 'a' twice; first at line 12"),
            ("C004", 14, 7, "preset b has no key 'colour'"),
        ],
    ),
    "no consequences": (  # a family that could not be read has no say about excludes and presets
        FWD.replace("128]", "12o]") + "    exclude: {head_dim: 128, reason: a}\npresets: {a: {head_dim: 128}}\n",
        [("C006", 6, 48, "head_dim '12o' is not spelled like 128 or 192x128")],
    ),
}
MATCH = "  - match: {family: fwd, head_dim: 128}\n    figure: 650 TFLOP/s\n    date: 2026-01-31\n"
BAD_RULES: dict[str, tuple[str, list[Problem]]] = {
    "no list": ("schema: 1\nrules: {}\n", [("C005", 2, 8, "rules must be a list, not a mapping")]),
    "newer schema": ("schema: 2\nrules: []\n", [("C008", 1, 9, "schema 2: this fa3gen reads schema 1")]),
    "unknown field": (RULES + MATCH + "    tile_k: 64\n", [("C004", 6, 5, "the rule has no key 'tile_k'")]),
    "architecture in match": (
        RULES + MATCH.replace("family: fwd", "family: fwd, arch: sm90a") + "    tile_n: 96\n",
        [("C004", 3, 26, "match has no key 'arch'")],
    ),
    "no number": (RULES + MATCH + "    tile_n: wide\n", [("C006", 6, 13, "tile_n has no value 'wide'")]),
    "no flag": (RULES + MATCH + "    pin_pv_wait: yes\n", [("C006", 6, 18, "pin_pv_wait has no value 'yes'")]),
    "no softmax": (RULES + MATCH + "    softmax: quick\n", [("C006", 6, 14, "softmax has no value 'quick'")]),
    "no date": (
        RULES + MATCH.replace("2026-01-31", "yesterday") + "    tile_n: 96\n",
        [("C006", 5, 11, "date 'yesterday' is not written like 2026-01-31")],
    ),
    "no figure": (
        RULES + MATCH.replace("    figure: 650 TFLOP/s\n", "") + "    tile_n: 96\n",
        [("C007", 3, 5, "the rule needs the key 'figure'")],
    ),
    "no family": (
        RULES + MATCH.replace("family: fwd, ", "") + "    tile_n: 96\n",
        [("C007", 3, 12, "match needs the key 'family'")],
    ),
    "no field": (RULES + MATCH, [("C007", 3, 5, "the rule sets no plan field")]),
    "same match": (
        RULES + MATCH + "    tile_n: 96\n" + MATCH + "    tile_n: 80\n",
        [("P003", 7, 5, "the rule matches the same as the one at line 3")],
    ),
    "narrower match below": (
        RULES + MATCH + "    tile_n: 96\n" + MATCH.replace("128}", "128, mask: full}") + "    tile_n: 80\n",
        [("P004", 7, 5, "the rule is never reached: earlier rules take all that it matches")],
    ),
    "match of nothing": (
        RULES + MATCH.replace("128", "80") + "    tile_n: 96\n",
        [("P004", 3, 5, "the rule is never reached: no family supports what it matches")],
    ),
    "unknown bound": (
        RULES + MATCH + "    when: {max_seqlenk: 9, max_tiles: 3}\n    tile_n: 96\n",
        [
            ("C004", 6, 12, "when has no key 'max_seqlenk'"),
            ("C004", 6, 28, "when has no key 'max_tiles'"),
        ],
    ),
    "bounds that are no mapping": (
        RULES + MATCH + "    when: 9\n    tile_n: 96\n",
        [("C005", 6, 11, "when must be a mapping, not a single value")],
    ),
    "bound that is no number": (
        RULES + MATCH + "    when: {max_batch: -1, min_batch: 4}\n    tile_n: 96\n",
        [("C006", 6, 23, "max_batch has no value '-1'")],
    ),
    "bounds that no call fits": (
        RULES + MATCH + "    when: {min_batch: 3, max_batch: 2, max_heads_k: 1}\n    tile_n: 96\n",
        [("P007", 6, 37, "no call fits: min_batch 3 is above max_batch 2")],
    ),
    "bounds that every call fits": (
        RULES + MATCH + "    when: {}\n    tile_n: 96\n" + MATCH + "    when: {min_batch: 0}\n    tile_n: 80\n",
        [("P007", 6, 11, "every call fits this `when`"), ("P007", 11, 11, "every call fits this `when`")],
    ),
    "bounds but no field": (
        RULES + MATCH + "    when: {max_batch: 2}\n",
        [("C007", 3, 5, "the rule sets no plan field")],
    ),
    "same match and bounds": (
        RULES + 2 * (MATCH + "    when: {max_batch: 2}\n    tile_n: 96\n"),
        [("P003", 8, 5, "the rule matches the same as the one at line 3")],
    ),
    "bounds behind the general plan": (
        RULES + MATCH + "    tile_n: 96\n" + MATCH + "    when: {max_batch: 2}\n    tile_n: 80\n",
        [("P004", 7, 5, "the rule is never reached: earlier rules take all that it matches")],
    ),
    "bounds within those above": (
        RULES
        + MATCH
        + "    when: {max_batch: 2}\n    tile_n: 96\n"
        + MATCH.replace("128}", "128, mask: full}")
        + "    when: {max_batch: 2, min_seqlen_q: 5}\n    tile_n: 80\n",
        [("P004", 8, 5, "the rule is never reached: earlier rules take all that it matches")],
    ),
    "bounds within those above together": (
        RULES
        + MATCH
        + "    when: {max_seqlen_k: 99}\n    tile_n: 96\n"
        + MATCH
        + "    when: {min_seqlen_k: 100, max_seqlen_k: 300}\n    tile_n: 80\n"
        + MATCH
        + "    when: {min_seqlen_k: 50, max_seqlen_k: 300}\n    tile_n: 64\n",
        [("P004", 13, 5, "the rule is never reached: earlier rules take all that it matches")],
    ),
    "bounds that leave the rule below nothing": (
        RULES
        + MATCH
        + "    when: {max_batch: 2}\n    tile_n: 96\n"
        + MATCH
        + "    when: {min_batch: 3}\n    tile_n: 80\n"
        + MATCH
        + "    tile_n: 64\n",
        [("P004", 13, 5, "the rule is never reached: earlier rules take all that it matches")],
    ),
    "bounds that leave the default nothing": (
        RULES
        + MATCH
        + "    when: {max_batch: 2}\n    tile_n: 96\n"
        + MATCH
        + "    when: {min_batch: 3}\n    tile_n: 80\n",
        [
            (
                "P004",
                8,
                5,
                "fwd_bf16_d128_full_sm90a: with this rule the family's default, its general plan, is never reached",
            )
        ],
    ),
    "one plan twice": (
        RULES
        + MATCH
        + "    when: {max_batch: 2}\n    tile_n: 96\n"
        + MATCH
        + "    when: {max_batch: 4}\n    tile_n: 80\n"
        + MATCH.replace("128}", "128, mask: causal}")
        + "    tile_n: 96\n",
        [("P008", 13, 5, f"{D128}: the plan is the same as that of the rule at line 3")],
    ),
    "the default again": (
        RULES + MATCH + "    when: {max_batch: 2}\n    tile_n: 128\n",
        [("P008", 3, 5, "fwd_bf16_d128_full_sm90a: the plan is the same as the family's default, the general plan")],
    ),
    "illegal further plan": (
        RULES + MATCH + "    when: {max_batch: 2}\n    tile_n: 120\n" + MATCH + "    tile_n: 96\n",
        [
            (
                "P005",
                3,
                5,
                "fwd_bf16_d128_full_sm90a: tile_n 120: a multiple of 16 (PV's depth) from 16 to 256 (QK's columns)",
            )
        ],
    ),
    "illegal plan": (
        RULES + MATCH + "    stages: 3\n",
        [
            (
                "P005",
                3,
                5,
                f"{D128.replace('causal', 'full')}: tile_n 128, stages 3, q_stages 2: "
                "262416 bytes of shared memory, and a CTA has 232448",
            )
        ],
    ),
}

TWELVE = HEAD.replace("mask: causal", "mask: [full, causal]") + (
    "families:\n  fwd:\n    axes: {dtype: [bf16, fp16], head_dim: [64, 128, 256, 80]}\n    on_unsupported: skip\n"
    "    exclude: {dtype: fp16, head_dim: 256, reason: no model}\npresets: {ci: {head_dim: 64}}\n"
)


def _twelve(tmp_path: Path) -> matrix.Matrix:
    path = tmp_path / "variants.yaml"
    path.write_text(TWELVE)
    return matrix.load(path)


# id -> (call, its problems as code and message)
BAD_CALLS: dict[str, tuple[Callable[[Path], object], list[tuple[str, str]]]] = {
    "missing file": (
        lambda tmp: config.load("absent.yaml"),
        [("C001", "cannot read absent.yaml: No such file or directory")],
    ),
    "a pattern of nothing": (
        lambda tmp: matrix.select(_twelve(tmp), ["fwd_bf16_*", "bwd_*"]),
        [("S001", "'bwd_*' matches no kernel")],
    ),
    "an excluded kernel": (
        lambda tmp: matrix.select(_twelve(tmp), ["fwd_fp16_d256_full_sm90a"]),
        [("S001", "'fwd_fp16_d256_full_sm90a' matches no kernel: fwd_fp16_d256_full_sm90a is excluded: no model")],
    ),
    "a skipped kernel": (
        lambda tmp: matrix.select(_twelve(tmp), ["*_d80_full_*"]),
        [
            (
                "S001",
                "'*_d80_full_*' matches no kernel: fwd_bf16_d80_full_sm90a is skipped:"
                " head_dim 80: fwd has 64, 96, 128, 192, 256, 192x128, 64x256",
            )
        ],
    ),
    "an unknown preset": (lambda tmp: matrix.select(_twelve(tmp), preset="cl"), [("S002", "there is no preset 'cl'")]),
    "unknown override": (
        lambda tmp: plan.resolve(parse_name(D128), {"tilen": 96, "stages": "two"}),
        [
            ("P001", f"{D128}: a plan has no field 'tilen'"),
            ("P002", f"{D128}: stages has no value 'two'"),
        ],
    ),
    "illegal override": (
        lambda tmp: plan.resolve(parse_name(D128), {"tile_n": 100}),
        [("P005", f"{D128}: tile_n 100: a multiple of 16 (PV's depth) from 16 to 256 (QK's columns)")],
    ),
    "unsupported variant": (
        lambda tmp: plan.resolve(parse_name("fwd_bf16_d80_full_sm90a")),
        [("P006", "fwd_bf16_d80_full_sm90a: head_dim 80: fwd has 64, 96, 128, 192, 256, 192x128, 64x256")],
    ),
}


def _problems(error: DiagnosticError) -> list[Problem]:
    return [
        (d.code, d.location.line, d.location.column, d.message) if d.location else (d.code, 0, 0, d.message)
        for d in error.diagnostics
    ]


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_config(name: str) -> None:
    text, problems = BAD_CONFIGS[name]
    Path("variants.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        matrix.load("variants.yaml")
    assert _problems(caught.value) == problems
    assert caught.value.exit_code == ExitCode.USAGE
    assert all(d.hint for d in caught.value.diagnostics)


@pytest.mark.parametrize("name", BAD_RULES)
def test_bad_rules(name: str) -> None:
    text, problems = BAD_RULES[name]
    Path("sm90a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan.load_rules("sm90a.yaml")
    assert _problems(caught.value) == problems
    assert all(d.hint for d in caught.value.diagnostics)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call(name: str, tmp_path: Path) -> None:
    call, problems = BAD_CALLS[name]
    with pytest.raises(DiagnosticError) as caught:
        call(tmp_path)
    assert [(d.code, d.message) for d in caught.value.diagnostics] == problems
    assert all(d.hint for d in caught.value.diagnostics)


def test_every_code_is_produced() -> None:
    placed = {problem[0] for _, problems in [*BAD_CONFIGS.values(), *BAD_RULES.values()] for problem in problems}
    called = {code for _, problems in BAD_CALLS.values() for code, _ in problems}
    assert placed | called == set(CODES)


def test_load_reports_what_reading_finds() -> None:
    text, problems = BAD_CONFIGS["everything at once"]
    Path("variants.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load("variants.yaml")
    read: list[Problem] = [problem for problem in problems if problem[0] < "C020"]
    assert _problems(caught.value) == read


def test_error_text() -> None:
    Path("variants.yaml").write_text(FWD.replace("fp16", "fb16").replace("toolchain", "toolchian"))
    with pytest.raises(ConfigError) as caught:
        matrix.load("variants.yaml")
    assert str(caught.value) == (
        "variants.yaml:2:1: error C004: the file has no key 'toolchian'\n"
        "  2 | toolchian: cu12\n"
        "    | ^^^^^^^^^\n"
        "  allowed: schema, toolchain, defaults, families, presets\n"
        "  did you mean toolchain?\n"
        "  next: correct the key or remove it\n"
        "variants.yaml:6:26: error C006: dtype has no value 'fb16'\n"
        "  6 |     axes: {dtype: [bf16, fb16], head_dim: [64, 128]}\n"
        "    |                          ^^^^\n"
        "  allowed: bf16, fp16\n"
        "  did you mean fp16?\n"
        "  next: correct the value\n"
        "2 errors; correct variants.yaml, then run `fa3gen list --config variants.yaml`"
    )


def test_selection_error_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError) as caught:
        matrix.select(_twelve(tmp_path), ["fwd_bf16_d128_casual_sm90a"])
    assert caught.value.diagnostics[0].suggestions[0] == D128
    assert "`fa3gen list --names`" in str(caught.value)


def test_not_utf8() -> None:
    Path("variants.yaml").write_bytes(b"schema: 1 # \xff\n")
    with pytest.raises(ConfigError, match=r"variants\.yaml is not UTF-8: byte 12 is 0xff"):
        config.load("variants.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_empty_file(text: str) -> None:
    Path("variants.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"error C002: variants\.yaml is empty"):
        config.load("variants.yaml")


def test_byte_order_mark_moves_no_column() -> None:
    Path("variants.yaml").write_text(FWD.replace("schema: 1", "schema: 2"), encoding="utf-8-sig")
    with pytest.raises(ConfigError) as caught:
        config.load("variants.yaml")
    assert caught.value.diagnostics[0].location == Location("variants.yaml", 1, 9)


def test_good_config() -> None:
    Path("variants.yaml").write_text(FWD.replace("cu12", "'cu13'") + "presets: {all: {family: fwd}}\n")
    raw = config.load("variants.yaml")
    assert raw.toolchain is Toolchain.CU13
    assert raw.families[0].axes.at == Location("variants.yaml", 6, 5)
    assert raw.problems == ()


def test_axes_left_out_are_neutral() -> None:
    Path("variants.yaml").write_text(FWD)
    assert {variant.layout for variant in matrix.load("variants.yaml").variants} == {Layout.DENSE}


def test_caret_stays_under_the_place_behind_tabs() -> None:
    diagnostic = Diagnostic("C006", "no", Location("f", 1, 4), width=2)
    assert diagnostic.render("a:\tbc d\n") == "f:1:4: error C006: no\n  1 | a:\tbc d\n    |   \t^^"


def test_place_behind_the_end_has_no_excerpt() -> None:
    assert Diagnostic("C002", "no", Location("f", 2, 1)).render("a: [\n") == "f:2:1: error C002: no"


def test_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="'C999' is no diagnostic code"):
        Diagnostic("C999", "no")


def test_nothing_near_suggests_nothing() -> None:
    assert nearest("zebra", ["bf16", "fp16"]) == ()


def test_plain_error_ends_in_its_next_step() -> None:
    error = MachineError("no GPU", hint="run `fa3gen doctor`")
    assert str(error) == "no GPU\n  next: run `fa3gen doctor`"
    assert int(error.exit_code) == 3


def test_a_misspelt_bound_is_guessed() -> None:
    Path("sm90a.yaml").write_text(BAD_RULES["unknown bound"][0])
    with pytest.raises(ConfigError, match="did you mean max_seqlen_k"):
        plan.load_rules("sm90a.yaml")
