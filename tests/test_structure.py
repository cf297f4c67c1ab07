"""Rules that hold for the whole tree: who needs what, what ships, and that nothing declared is left unused."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fa3.contract import Key

from fa3gen.errors import CODES
from fa3gen.features import FEATURES, Feature
from fa3gen.model import Arch, Family
from fa3gen.toolchain import DSL
from tests.runtime_bundle import write_bundle

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
DEVICE = ROOT / "fa3gen" / "device"
#: One of the kernels that compile fastest.
KERNEL = "fwd_bf16_d64_full_sm90a"


#: Untracked files that count, too: what somebody has written and not yet added.  Not what tools leave while tests run.
SOURCES = {".c", ".cpp", ".h", ".jinja", ".md", ".py", ".toml", ".yaml"}


@cache
def _tracked() -> tuple[Path, ...]:
    """The files of the repository, with sources that are not yet added and without what git ignores."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: only git tells the repository's files from others")
    cached, others = (_ls_files(*options) for options in (["--cached"], ["--others", "--exclude-standard"]))
    files = {*cached, *(file for file in others if file.suffix in SOURCES)}
    return tuple(sorted(file for file in files if file.is_file()))


def _ls_files(*options: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *options, "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def _contents() -> Iterator[tuple[Path, bytes]]:
    """Files, by their paths in the repository; one that has vanished meanwhile is none of it."""
    for file in _tracked():
        with contextlib.suppress(FileNotFoundError):
            yield file.relative_to(ROOT), file.read_bytes()


def _text(suffixes: Iterable[str] = ()) -> Iterator[tuple[Path, str]]:
    for path, data in _contents():
        if not suffixes or path.suffix in suffixes:
            yield path, data.decode()


def _toml(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text("utf-8"))


def test_what_tools_leave_is_no_file_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kept.txt", "gone.py", "new.py", ".part.1", "ignored.py"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    for words in (["init", "-q"], ["add", "kept.txt", "gone.py"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "_tracked", _tracked.__wrapped__)
    assert [file.name for file in _tracked()] == ["gone.py", "kept.txt", "new.py"]

    listed = _tracked()
    monkeypatch.setattr(sys.modules[__name__], "_tracked", lambda: listed)
    (tmp_path / "gone.py").unlink()
    assert [str(path) for path, _ in _text()] == ["kept.txt", "new.py"]


def test_without_git_there_is_no_list_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    with pytest.raises(pytest.skip.Exception, match="needs a git checkout"):
        _tracked.__wrapped__()


# --- what the generator needs


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which importing torch or the runtime's binding fails, in subprocesses of subprocesses too."""
    folder = tmp_path_factory.mktemp("blocked")
    for name in ("torch", "tvm_ffi"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked by this test')\n", "utf-8")
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "runtime")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def _python(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_torch_is_blocked(without_torch: Mapping[str, str]) -> None:
    assert "blocked by this test" in _python(without_torch, "-c", "import torch").stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        ["list", "--json"],
        ["render", "--stdout", KERNEL],
        ["build", "--dry-run"],
        ["inspect", "--source", KERNEL],
        ["build", "--help"],
        ["explain", "--help"],
        ["verify", "--help"],
        ["bench", "--help"],
        ["tune", "--help"],
        ["tune", "candidates", "--dry-run", "--limit", "2", KERNEL],
        ["tune", "run", "--help"],
        ["tune", "choose", "--help"],
        ["doctor", "--help"],
    ],
    ids=" ".join,
)
def test_command_needs_neither_torch_nor_the_compiler(words: list[str], without_torch: Mapping[str, str]) -> None:
    code = (
        "import sys\nfrom fa3gen.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'cutlass' not in sys.modules\n"
    )
    result = _python(without_torch, "-c", code, *words)
    assert result.returncode == 0, result.stderr


def test_build_needs_no_torch(without_torch: Mapping[str, str], tmp_path: Path) -> None:
    result = _python(without_torch, "-m", "fa3gen.cli", "build", KERNEL, "-j", "1", "--build-dir", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "bundle" / "cubins" / f"{KERNEL}.cubin").stat().st_size > 0


def test_explain_needs_no_torch(without_torch: Mapping[str, str], tmp_path: Path) -> None:
    (name, *_) = [entry.name for entry in write_bundle(tmp_path, [Key("fwd", "bf16", "64", "full", "dense")]).kernels]
    words = ["explain", "--bundle", str(tmp_path), "--head-dim", "64", "--seqlen-q", "9", "--heads-q", "1"]
    result = _python(without_torch, "-m", "fa3gen.cli", *words)
    assert result.stdout.splitlines()[0] == name, result.stderr


# --- who imports whom: what import-linter (.importlinter) cannot say


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("file", sorted(DEVICE.glob("*.py")), ids=lambda file: file.stem)
def test_device_library_imports_only_the_dsl(file: Path) -> None:
    """It is traced: what it reads must be in the kernel's digest, and the digest covers itself and the DSL."""
    others = {name for name in _imports(file) if name.partition(".")[0] not in (*sys.stdlib_module_names, "cutlass")}
    assert {name for name in others if not name.startswith("fa3gen.device")} == set()


# --- what ships


def test_packages_are_those_of_the_tree() -> None:
    declared = set(_toml("pyproject.toml")["tool"]["setuptools"]["packages"])
    found = {file.parent.relative_to(ROOT) for file in _tracked() if file.is_relative_to(ROOT / "fa3gen")}
    expected = {".".join(folder.parts) for folder in found} | {"fa3gen.templates"}
    assert declared == expected


def test_data_files_are_declared() -> None:
    declared = _toml("pyproject.toml")["tool"]["setuptools"]["package-data"]
    folders = {"fa3gen.plans": ROOT / "fa3gen" / "plans", "fa3gen.templates": ROOT / "templates"}
    assert set(declared) == set(folders)
    shipped = {file for package, folder in folders.items() for glob in declared[package] for file in folder.glob(glob)}
    needed = {
        file
        for file in _tracked()
        if file.is_relative_to(ROOT / "fa3gen") or file.is_relative_to(ROOT / "templates")
        if file.suffix not in (".py", ".typed")
    }
    assert needed
    assert shipped == needed


def test_versions_agree() -> None:
    generator, runtime = _toml("pyproject.toml")["project"], _toml("runtime/pyproject.toml")["project"]
    assert generator["version"] == runtime["version"]
    assert f"{runtime['name']}=={runtime['version']}" in generator["dependencies"]


def test_compiler_is_pinned_exactly_and_the_runtime_has_none_of_it() -> None:
    dependencies = _toml("pyproject.toml")["project"]["dependencies"]
    (pin,) = [one for one in dependencies if one.startswith(DSL)]
    assert re.fullmatch(rf"{DSL}==[0-9.]+", pin)
    (only,) = _toml("runtime/pyproject.toml")["project"]["dependencies"]
    assert only.startswith("apache-tvm-ffi")


def test_no_binaries_are_committed() -> None:
    """So nothing of NVIDIA's either: what the wheels hold is sources, and what is compiled from them."""
    assert [str(path) for path, data in _contents() if b"\0" in data] == []


# --- what tracked files may say

#: Hosts that files may name: references for readers, and nothing that an installation would go to.
HOSTS = {"arxiv.org", "docs.nvidia.com", "github.com"}
#: Folders of some machine.  /tmp, /usr and the like are everyone's.
MACHINE_PATH = re.compile(r"(?<![\w.*)}\]-])/(?:work|root|home|Users|mnt|data|opt/\w+)/[\w.]")


def test_no_paths_of_a_machine() -> None:
    found = [f"{path}: {match[0]}" for path, text in _text() for match in MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize("text", ["/@work/x", "open('/@root/.cache')", "cd /@home/me", "PATH=/opt/@cuda/bin"])
def test_a_path_of_a_machine_is_found(text: str) -> None:
    assert MACHINE_PATH.search(text.replace("@", ""))  # which keeps this file out of its own search


def test_no_hosts_but_references() -> None:
    scheme = re.compile(r"\b\w+://([\w.-]+)")
    found = {f"{path}: {match[1]}" for path, text in _text() for match in scheme.finditer(text)}
    assert {line for line in found if line.rpartition(" ")[2] not in HOSTS} == set()


# --- nothing declared is left unused


@pytest.mark.parametrize("code", CODES)
def test_diagnostic_code_is_used_and_tested(code: str) -> None:
    quoted = f'"{code}"'
    sources = [path for path, text in _text([".py"]) if quoted in text and path.name != "errors.py"]
    assert [path for path in sources if path.parts[0] == "fa3gen"], "nothing reports it"
    assert [path for path in sources if path.parts[0] == "tests"], "no test expects it"


def _unwired(features: Mapping[str, Feature], templates: Mapping[str, str]) -> list[str]:
    """What is missing for the registry's rows; ``templates`` holds the templates of each family as one text."""
    problems = []
    for name, row in features.items():
        problems += [f"{name}: no family {family}" for family in row.families if family not in templates]
        problems += [f"{name}: conflicts with unknown {other}" for other in row.conflicts if other not in features]
        quoted = re.compile(rf"""["']{re.escape(name)}["']""")
        known = [family for family in row.families if family in templates]
        problems += [f"{name}: no line in {family}" for family in known if not quoted.search(templates[family])]
    return problems


def test_features_are_wired() -> None:
    templates = {
        family.value: "".join(
            (ROOT / "templates" / arch.value / f"{family.value}.py.jinja").read_text("utf-8") for arch in Arch
        )
        for family in Family
    }
    assert _unwired(FEATURES, templates) == []


def test_an_unwired_feature_is_found() -> None:
    features = {"cap": Feature(("fwd", "gone"), ("none",)), "sink": Feature(("fwd",))}
    assert _unwired(features, {"fwd": "# % if 'sink' in variant.features"}) == [
        "cap: no family gone",
        "cap: conflicts with unknown none",
        "cap: no line in fwd",
    ]
