"""The README says what is there: its commands, options, paths, code and table."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from fa3gen import docs, evidence, matrix
from fa3gen.cli import COMMANDS, cli
from fa3gen.errors import Fa3genError
from tests.built_kernels import FURTHER, NAME, use_further_rules

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def _commands(first: str) -> list[list[str]]:
    """The commands of the README's shell blocks that start with ``first``, as words."""
    lines = [part for block in _blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if command and command[0] == first]


def _inline() -> Iterator[tuple[str, list[str]]]:
    """Every ``fa3gen COMMAND …`` in the running text, with the options named in the rest of its table row."""
    for line in README.splitlines():
        match = re.match(r"\| `fa3gen (\w+)", line)
        if match:
            yield match[1], re.findall(r"`(--?[a-z][a-z-]*)`", line)


def _command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, f"fa3gen has no command {name}"
    return found


@pytest.mark.parametrize("words", _commands("fa3gen"), ids=" ".join)
def test_shell_line_is_understood(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _command(words[1]).make_context(words[1], words[2:])  # UsageError for what the command does not know


def test_table_of_commands_names_each_command_and_its_options() -> None:
    rows = dict(_inline())
    assert list(rows) == list(COMMANDS)
    for name, options in rows.items():
        known = {option for parameter in _command(name).params for option in parameter.opts}
        assert set(options) <= known, f"fa3gen {name}"


@pytest.mark.parametrize("words", [["list", "--preset", "llama3", "--json"], ["render", "--check"]], ids=" ".join)
def test_shell_line_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["fa3gen", *words] in _commands("fa3gen")
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    if "--json" in words:
        assert [row["name"] for row in json.loads(result.stdout)]


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in {word for words in _commands("make") for word in words[1:]}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_first_block_holds_the_two_commands_and_ci_runs_the_second() -> None:
    main, test = _blocks("sh")[0].splitlines()
    assert shlex.split(main, comments=True) == ["make"]
    assert shlex.split(test, comments=True) == ["make", "test"]
    ci = ROOT / ".ci" / "run"
    assert ci.read_text("utf-8").rstrip().endswith("\nexec make test")
    assert ci.stat().st_mode & 0o111


def test_python_runs_up_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as it stands, on the CPU, with the reference in place of the kernels."""
    import fa3.runtime

    signature = inspect.signature(fa3.runtime.attention)
    loaded: list[Any] = []
    shapes: list[tuple[int, ...]] = []

    def attention(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        q, k, v = (bound.arguments[name] for name in ("q", "k", "v"))
        small = (tensor[:1, :64, :, :] for tensor in (q, k, v))
        shapes.append(tuple(q.shape))
        options = {name: bound.arguments.get(name, False) for name in ("causal", "return_lse")}
        return fa3.runtime.reference.attention(*small, **options)

    def load_bundle(*args: Any, **kwargs: Any) -> None:
        loaded.append(real_load.bind(*args, **kwargs).arguments["path"])

    real_load = inspect.signature(fa3.runtime.load_bundle)
    monkeypatch.setattr(fa3.runtime, "attention", attention)
    monkeypatch.setattr(fa3.runtime, "load_bundle", load_bundle)
    (example,) = _blocks("python")
    assert len([line for line in example.splitlines() if line]) <= 10
    scope: dict[str, Any] = {}
    exec(compile(example.replace('"cuda"', '"cpu"'), "README.md", "exec"), scope)
    assert loaded == ["bundle"]
    assert shapes == [(2, 4096, 16, 128)] * 2
    assert isinstance(scope["out"], torch.Tensor)
    assert scope["lse"].dtype == torch.float32


def test_yaml_is_a_configuration(tmp_path: Path) -> None:
    (example,) = _blocks("yaml")
    file = tmp_path / "variants.yaml"
    file.write_text(example, "utf-8")
    found = matrix.load(file)
    assert len(found.variants) == 2 * 2 * 2 - 2
    assert len(found.excluded) == 2


def test_paths_exist() -> None:
    written_by_a_build = {"build/bundle", "dist/fa3_runtime-*.whl"}
    named = set(re.findall(r"`((?:fa3gen|generated|runtime|templates|tests)/[\w./-]*)`", README)) - written_by_a_build
    assert len(named) > 5
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_table_of_kernels_is_current() -> None:
    assert docs.updated(README, docs.kernel_table()) == README, "next: python -m fa3gen.docs --write"


def test_table_of_kernels_names_each_kernel_and_its_evidence(tmp_path: Path) -> None:
    (tmp_path / "variants.yaml").write_bytes((ROOT / "variants.yaml").read_bytes())
    names = [plan.name for plan in matrix.select_plans(matrix.load(ROOT / "variants.yaml"))]
    record = {"kernel": names[0], "cubin_sha256": "0", "cases": [], "device": "some GPU", "date": "2001-02-03"}
    evidence.write(tmp_path / "tests" / "evidence", "sm90a", {names[0]: {"schema": evidence.SCHEMA, **record}})
    rows = docs.kernel_table(tmp_path).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == names
    assert rows[0].endswith("| some GPU, 2001-02-03 |")
    assert all(row.endswith("| no |") for row in rows[1:])
    (tmp_path / "tests" / "evidence" / evidence.PENDING).write_text(f"{names[0]} 2001-02-03 changed\n", "utf-8")
    assert docs.kernel_table(tmp_path).splitlines()[2].endswith("| no |"), "the record is of an earlier kernel"


def test_table_of_kernels_shows_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_further_rules(monkeypatch, tmp_path)
    (tmp_path / "variants.yaml").write_bytes((ROOT / "variants.yaml").read_bytes())
    rows = {row.split("`")[1]: row.split(" | ")[1] for row in docs.kernel_table(tmp_path).splitlines()[2:]}
    assert (rows[FURTHER], rows[NAME]) == ("seqlen_k <= 2047", "all others")
    assert rows["fwd_bf16_d128_full_sm90a"] == "all"


def test_table_goes_between_the_markers() -> None:
    text = f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n"
    assert docs.updated(text, "new\n") == f"before\n{docs.BEGIN}\n\nnew\n\n{docs.END}\nafter\n"
    for wrong in (docs.BEGIN, f"{docs.END}\n{docs.BEGIN}", text + text):
        with pytest.raises(Fa3genError, match="once each"):
            docs.updated(wrong, "new\n")
