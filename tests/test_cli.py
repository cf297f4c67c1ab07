"""The command line: what each command prints where, its exit codes, and what it does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

from fa3gen import compile as compiler
from fa3gen import render, sass, toolchain
from fa3gen.arch.sm90 import launch_registers, smem_bytes
from fa3gen.build import Paths
from fa3gen.cli import COMMANDS, cli, main
from fa3gen.errors import CODES
from fa3gen.worker import Failed, Job
from tests.built_kernels import (
    CONFIG,
    FURTHER,
    NAME,
    REPO,
    built,
    plan_of,
    plans,
    shipped,
    use_further_rules,
    use_general_rules,
)
from tests.test_build import compiled

OTHER = "fwd_bf16_d64_causal_sm90a"
HERE = [name for name in COMMANDS if (REPO / "fa3gen" / "cli" / f"{name}.py").is_file()]


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs commands in a folder of their own, with the shipped configuration and no real compiler."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.failing: set[str] = set()
        self.compiled: list[str] = []

    def __call__(self, *arguments: str) -> Result:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        out, err = self.capsys.readouterr()
        assert "\x1b" not in out + err  # nothing here is a terminal
        assert "Traceback" not in err
        assert isinstance(exited.value.code, int)
        return Result(exited.value.code, out, err)

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        return json.loads(result.out)

    def run(self, jobs: Sequence[Job], _workers: int) -> Iterator[Any]:
        for job in jobs:
            self.compiled.append(job.name)
            yield Failed(job.name, "no\nway") if job.name in self.failing else compiled(job.name)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    use_general_rules(monkeypatch)
    built()  # which compiles what the store lacks: with the real compiler, so before it is replaced
    monkeypatch.chdir(tmp_path)
    Path("variants.yaml").write_text(CONFIG.read_text())
    shell = Shell(capsys)
    monkeypatch.setattr(compiler, "run", shell.run)
    return shell


def in_subprocess(code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, env=environment, capture_output=True, text=True, check=check
    )


# ------------------------------------------------------------------------------------------------------- the group


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name, what in COMMANDS.items():
        assert name in result.output
        assert what in result.output


@pytest.mark.parametrize("name", HERE)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("Usage: ")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert all(param.help for param in command.params if isinstance(param, click.Option)), "an option without help"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "--help"], ["list"], ["list", "--json"], ["render", "--help"], ["build", "--dry-run"]],
    ids=" ".join,
)
def test_the_overview_loads_neither_torch_nor_the_compiler(arguments: list[str]) -> None:
    done = in_subprocess(
        "import sys\nfrom fa3gen.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as exit: code = exit.code\n"
        "print([m for m in ('torch', 'cutlass', 'tvm_ffi', 'fa3.runtime') if m in sys.modules], code, file=sys.stderr)"
    )
    assert done.stderr.splitlines()[-1] == "[] 0", done.stderr


def test_the_module_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fa3gen.cli", "list", "--names"],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [plan.name for plan in plans()]


def test_wrong_usage(shell: Shell) -> None:
    result = shell("lst")
    assert result.code == 2
    assert "No such command 'lst'" in result.err
    result = shell("build", "--jobs", "0")
    assert result.code == 2
    assert "--jobs" in result.err
    assert shell("inspect").code == 2


def test_a_wrong_configuration_is_shown_with_its_place(shell: Shell) -> None:
    Path("variants.yaml").write_text("schema: 1\ntoolchain: cu12\nfamilies: {fwd: {axes: {dtype: bf17}}}\n")
    for command in (["list"], ["build"], ["render"], ["inspect", NAME]):
        result = shell(*command)
        assert result.code == 2
        assert result.out == ""
        assert result.err.startswith("variants.yaml:3:32: error C006: dtype has no value 'bf17'")
    assert shell("list", "--config", "nowhere.yaml").code == 2


def test_what_selects_nothing_is_an_error(shell: Shell) -> None:
    result = shell("list", "fwd_bf16_d64_ful_sm90a")
    assert result.code == 2
    assert result.err.startswith("error S001: 'fwd_bf16_d64_ful_sm90a' matches no kernel")
    assert NAME in result.err
    result = shell("build", "--preset", "witnes")
    assert result.code == 2
    assert "S002" in result.err
    assert {"S001", "S002", "C006"} <= CODES.keys()


# ------------------------------------------------------------------------------------------------------------- list


def test_list(shell: Shell) -> None:
    result = shell("list")
    assert result.code == 0
    assert result.err == ""
    header, *rows = result.out.splitlines()
    assert header.split() == ["NAME", "WHEN", "PLAN", "REGISTERS", "SMEM", "BUILT", "VERIFIED"]
    assert [row.split()[0] for row in rows] == list(shipped().names)
    assert all(row.endswith("no      no") or row.split()[-2:] == ["no", "no"] for row in rows)

    shell("build", NAME)
    (row,) = [row for row in shell("list").out.splitlines() if row.startswith(NAME)]
    assert row.split()[-4:] == ["128", str(smem_bytes(plan_of(NAME))), "yes", "no"]
    assert "variants.yaml:" in shell("list", "-v", NAME).out


def test_list_in_other_forms(shell: Shell) -> None:
    assert shell("list", "--names", "*d64_full*").out.split() == [NAME, "fwd_fp16_d64_full_sm90a"]
    assert shell.json("list", "--names", NAME) == [NAME]
    (row,) = shell.json("list", NAME)
    assert row["name"] == NAME
    assert row["plan"]["tile_m"] == plan_of().tile_m
    assert (row["built"], row["why_not_built"], row["registers"], row["verified"]) == (False, "new", None, None)
    result = shell("list", "--skipped")
    rows = result.out.splitlines()[1:]
    assert (result.code, len(rows)) == (0, 8)
    assert all("excluded" in row and "run in bf16" in row for row in rows)
    text = Path("variants.yaml").read_text()
    exclude = "    exclude:\n      - {dtype: fp16, head_dim: 64, reason: nobody asks}\n"
    Path("variants.yaml").write_text(text.replace("    exclude:\n", exclude))
    row = next(row for row in shell("list", "--skipped").out.splitlines() if row.startswith("fwd_fp16_d64_full"))
    assert row.split(maxsplit=2)[1:] == ["excluded", "nobody asks"]
    assert [row["kind"] for row in shell.json("list", "--skipped")] == ["excluded"] * 10


def test_list_shows_evidence(shell: Shell, tmp_path: Path) -> None:
    shell("build", NAME)
    row = {"schema": 1, "kernel": NAME, "cases": [], "device": "NVIDIA H200", "date": "2026-12-01"}
    digest = shell.json("inspect", NAME)["cubin_sha256"]
    folder = tmp_path / "tests" / "evidence" / "sm90a"
    folder.mkdir(parents=True)
    (folder / "fwd.jsonl").write_text(json.dumps(row | {"cubin_sha256": digest}) + "\n")
    assert shell.json("list", NAME)[0]["verified"] == {"device": "NVIDIA H200", "date": "2026-12-01"}
    assert shell("list", NAME).out.rstrip().endswith("NVIDIA H200, 2026-12-01")
    shell("build", NAME)
    (entry,) = json.loads(Path("build/bundle/manifest.json").read_text())["kernels"]
    assert entry["verified"] == {"device": "NVIDIA H200", "date": "2026-12-01"}
    (folder / "fwd.jsonl").write_text(json.dumps(row | {"cubin_sha256": "0" * 64}) + "\n")
    assert shell.json("list", NAME)[0]["verified"] is None


# ----------------------------------------------------------------------------------------------------------- render


def test_render_writes_checks_and_repairs(shell: Shell) -> None:
    witness = shipped().presets["witness"]
    result = shell("render", "--check")
    assert result.code == 1
    assert result.out.splitlines() == [f"generated/sm90a/{name}.py: missing" for name in witness]
    assert result.err == "next: run `fa3gen render`\n"
    assert not Path("generated").exists()

    assert shell("render").code == 0
    path = Path("generated/sm90a", f"{witness[0]}.py")
    assert path.read_text() == render.render(plan_of(witness[0]))
    assert shell("render", "--check") == (0, "", "all sources are up to date\n")

    path.write_text(path.read_text() + "x = 1\n")
    Path("generated/sm90a/stray.py").write_text("")
    result = shell("render", "--check")
    assert result.code == 1
    assert f"{path}: changed" in result.out
    assert "generated/sm90a/stray.py: orphaned" in result.out
    result = shell("render", "--diff")
    assert result.code == 1
    assert "-x = 1" in result.out
    assert shell("render").err.splitlines() == [f"{path}: updated", "generated/sm90a/stray.py: removed"]
    assert shell("render", "--check", "-q") == (0, "", "")


def test_render_of_a_selection(shell: Shell) -> None:
    result = shell("render", NAME, "--stdout")
    assert (result.code, result.err) == (0, "")
    assert result.out == render.render(plan_of())
    assert not Path("generated").exists()
    assert shell("render", OTHER, "--out", "elsewhere").code == 0
    assert Path("elsewhere/sm90a", f"{OTHER}.py").is_file()
    assert shell("render", NAME, "--out", "elsewhere", "--check").err.endswith(
        f"next: run `fa3gen render {NAME} --out elsewhere`\n"
    )
    result = shell("render", OTHER)
    assert result.code == 2
    assert "generated holds the preset witness only" in result.err


# ------------------------------------------------------------------------------------------------------------ build


def test_build(shell: Shell) -> None:
    result = shell("build", NAME, OTHER)
    assert result.code == 0
    lines = result.err.splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [OTHER, NAME]
    for line in lines:
        plan = plan_of(line.split(":")[0])
        made = f"{launch_registers(plan.threads)} registers, {smem_bytes(plan)} bytes of shared memory"
        assert line == f"{plan.name}: compiled in 0.1 s (new), {made}"
    assert result.out.startswith("2 compiled, 0 up to date, 0 failed in ")
    assert "; build/bundle (2 kernels, " in result.out
    result = shell("build", NAME, OTHER)
    assert result.err == ""
    assert result.out.startswith("0 compiled, 2 up to date, 0 failed in ")
    assert result.out.endswith(" kB, unchanged)\n")
    assert shell("build", NAME, "-q") == (0, "", "")
    assert [path.stem for path in Path("build/bundle/cubins").iterdir()] == [NAME]
    assert f"{NAME}: up to date" in shell("build", NAME, "-v").err
    assert shell("build", NAME, "--out", "my/bundle", "--force").code == 0
    assert Path("my/bundle/manifest.json").is_file()
    assert shell.compiled.count(NAME) == 2


def test_build_in_json(shell: Shell) -> None:
    document = shell.json("build", NAME)
    assert document["bundle"]["path"] == "build/bundle"
    (kernel,) = document["kernels"]
    assert (kernel["name"], kernel["status"], kernel["resources"]["registers"]) == (NAME, "compiled", 128)


def test_a_dry_run_says_why_and_does_nothing(shell: Shell) -> None:
    result = shell("build", NAME, "--dry-run")
    assert result == (0, f"{NAME}: would compile (new)\n", "")
    assert not Path("build").exists()
    shell("build", NAME)
    assert shell("build", NAME, "--dry-run").out == f"{NAME}: up to date\n"
    assert shell("build", NAME, "--dry-run", "--force").out == f"{NAME}: would compile (forced)\n"
    assert shell.json("build", NAME, "--dry-run") == [{"name": NAME, "status": "up to date", "reason": ""}]


def test_failures_are_shown_and_are_findings(shell: Shell) -> None:
    shell.failing.add(NAME)
    result = shell("build", NAME, OTHER)
    assert result.code == 1
    assert f"error: {NAME} (variants.yaml:" in result.err
    assert "failed:\n  no\n  way" in result.err
    assert "1 compiled, 0 up to date, 1 failed" in result.out
    assert "no bundle written" in result.out
    result = shell("build", NAME, OTHER, "--keep-going")
    assert result.code == 1
    assert "build/bundle (1 kernel, " in result.out


def test_a_machine_without_the_compiler(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed", dict)
    result = shell("build", NAME)
    assert result.code == 3
    assert result.err == ("error: the kernel compiler is not installed\n  next: pip install 'nvidia-cutlass-dsl'\n")
    assert shell("list", NAME).code == 0


def test_a_terminal_gets_a_progress_bar(tmp_path: Path) -> None:
    """A build of what is built already, on a pseudo terminal."""
    import pty

    built()
    arguments = [
        "build",
        NAME,
        "--config",
        str(CONFIG),
        "--build-dir",
        str(REPO / "build"),
        "--out",
        str(tmp_path / "b"),
    ]
    leader, follower = pty.openpty()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fa3gen.cli", *arguments],
        cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=follower, text=True,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the terminal's other end is closed
            break
        if not chunk:
            break
        shown += chunk
    out, _ = process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 0
    count = sum(plan.variant.name == NAME for plan in plans())
    assert f"{count}/{count}".encode() in shown
    assert out.startswith(f"0 compiled, {count} up to date, 0 failed")
    assert "\x1b" not in out


# ---------------------------------------------------------------------------------------------------------- inspect


def test_inspect_before_and_after_a_build(shell: Shell) -> None:
    result = shell("inspect", NAME)
    assert result.code == 0
    for reason in plan_of().reasons:
        assert reason in result.out
    assert "tma_q" in result.out
    assert f"not built: new\n  next: fa3gen build {NAME}" in result.out
    assert shell.json("inspect", NAME)["built"] is False
    for view in ("--ptx", "--sass"):
        result = shell("inspect", NAME, view)
        assert result.code == 1
        assert f"{NAME} is not built: new\n  next: fa3gen build {NAME}" in result.err

    shell("build", NAME)
    result = shell("inspect", NAME)
    for text in ("registers", "spill_bytes", "hgmma", "remarks of ptxas", "Used 128 registers", "verified  no"):
        assert text in result.out
    document = shell.json("inspect", NAME)
    assert document["variant"]["head_dim"] == "64"
    assert document["resources"]["spill_bytes"] == 0
    assert document["sass"]["hgmma"] > 0
    assert [param["name"] for param in document["params"]][:2] == ["tma_q", "tma_k"]
    assert document["toolchain"]["cuda"] == "12.9"


def test_inspect_shows_the_code(shell: Shell) -> None:
    assert shell("inspect", NAME, "--source").out == render.render(plan_of())
    shell("build", NAME)
    assert shell("inspect", NAME, "--ptx").out == built()[NAME].ptx
    assert "HGMMA" in shell("inspect", NAME, "--sass").out


def test_inspect_without_a_disassembler(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda: None)
    shell("build", NAME)
    assert f"machine code: pip install {sass.WHEEL}" in shell("inspect", NAME).out
    assert shell.json("inspect", NAME)["sass"] is None
    assert shell("inspect", NAME, "--sass").code == 3


def test_inspect_wants_one_kernel(shell: Shell) -> None:
    result = shell("inspect", "*d64*")
    assert result.code == 2
    assert "selects 6 kernels" in result.err


# ---------------------------------------------------------------------------------------- several plans of a variant


@pytest.fixture
def several(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    use_further_rules(monkeypatch, tmp_path)
    return shell


@pytest.mark.parametrize(
    ("pattern", "names"), [(NAME, [FURTHER, NAME]), ("*_d64_full_sm90a__n*", [FURTHER]), (FURTHER, [FURTHER])]
)
def test_names_of_variants_and_of_plans_select(several: Shell, pattern: str, names: list[str]) -> None:
    found = several("list", "--names", pattern).out.split()
    assert [name for name in found if "bf16" in name] == names
    assert [row["name"] for row in several.json("build", pattern, "--dry-run") if "bf16" in row["name"]] == names


def test_a_wrong_plan_is_guessed(several: Shell) -> None:
    result = several("list", f"{NAME}__n46")
    assert result.code == 2
    assert FURTHER in result.err


def test_list_shows_bounds(several: Shell) -> None:
    further, general = several.json("list", NAME)
    assert (further["name"], further["when"], further["plan"]["tile_n"]) == (FURTHER, {"max_seqlen_k": 2047}, 64)
    assert (general["name"], general["when"], general["plan"]["tile_n"]) == (NAME, None, 128)
    assert not {"bounds", "summary"} & further.keys()
    _, *rows = several("list", NAME).out.splitlines()
    assert rows[0].split("  ")[1] == "seqlen_k <= 2047"
    assert rows[1].split()[1] == "-"


def test_inspect_shows_one_of_several_plans(several: Shell) -> None:
    result = several("inspect", NAME)
    assert f"when  no other plan fits\nplans {FURTHER}, {NAME}: a call takes the first that it fits" in result.out
    result = several("inspect", FURTHER)
    assert "when  seqlen_k <= 2047" in result.out
    assert "tile_n 64: quicker there (2026-01-31)" in result.out
    document = several.json("inspect", FURTHER)
    assert (document["when"], document["plans"]) == ({"max_seqlen_k": 2047}, [FURTHER, NAME])
    result = several("inspect", f"{NAME}*")
    assert result.code == 2
    assert f"selects 2 kernels: {FURTHER}, {NAME}" in result.err
    assert "when" not in several("inspect", "fwd_bf16_d128_full_sm90a").out


def test_render_of_several_plans(several: Shell) -> None:
    assert several("render", FURTHER, "--stdout").out.startswith(f"# {FURTHER}\n# Rendered by")
    assert f'\nNAME = "{FURTHER}"\n' in several("render", FURTHER, "--stdout").out
    assert several("render", NAME, "--out", "elsewhere").code == 0
    assert sorted(path.stem for path in Path("elsewhere/sm90a").iterdir()) == [NAME, FURTHER]
    assert several("render").code == 0
    committed = {path.stem for path in Path("generated/sm90a").iterdir()}
    assert committed >= {*shipped().presets["witness"], FURTHER}
    assert several("render", "--check").code == 0


def test_paths_lie_under_the_build_folder() -> None:
    assert Paths.under(Path("b")) == Paths(Path("b/generated"), Path("b/store"), Path("b/bundle"))
    assert Paths.under(Path("b"), Path("o")).bundle == Path("o")
