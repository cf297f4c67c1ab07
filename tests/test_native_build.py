"""The libraries and the wheel as files: what they need, what they show, and that a build can be repeated."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.native import support
from tests.native.support import CAUSAL

HERE = Path(__file__).parent / "native"
CC = shutil.which("cc") or "gcc"
CXX = shutil.which("c++") or "g++"
LIBFA3, BINDING = "libfa3.so", "libfa3_tvm_ffi.so"

#: The C library and its loader, which has the threads' storage.
LIBC = r"libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux-.*"
NEEDED = {LIBFA3: LIBC, BINDING: rf"{LIBC}|libfa3\.so|libtvm_ffi\.so"}
BOTH = pytest.mark.parametrize("library", [LIBFA3, BINDING])


def _tool(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def _copy_of_sources(target: Path) -> Path:
    """A copy of ``runtime/`` without what was built there."""
    built = shutil.ignore_patterns("*.so", "build", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(support.RUNTIME, target, ignore=built))


@BOTH
def test_libraries_need_the_c_library_only(library: str) -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", _tool("readelf", "-d", support.libraries() / library))
    assert "libc.so.6" in needed
    assert [name for name in needed if not re.fullmatch(NEEDED[library], name)] == []


def test_the_binding_finds_the_library_beside_it() -> None:
    dynamic = _tool("readelf", "-d", support.libraries() / BINDING)
    assert re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic) == ["$ORIGIN"]
    assert "libfa3.so]" in dynamic
    assert "libtvm_ffi.so]" in dynamic


@BOTH
def test_libraries_show_their_own_functions_only(library: str) -> None:
    shown = [
        line.split()[-1] for line in _tool("nm", "-D", "--defined-only", support.libraries() / library).splitlines()
    ]
    prefix = "fa3_" if library == LIBFA3 else "__tvm_ffi_"
    assert shown
    assert [name for name in shown if not name.startswith(prefix)] == []


def test_every_function_of_the_header_is_there() -> None:
    declared = set(re.findall(r"\bFA3_API [^;(]*?\b(fa3_\w+)\(", (support.RUNTIME / "fa3/native/fa3.h").read_text()))
    symbols = _tool("nm", "-D", "--defined-only", support.libraries() / LIBFA3)
    assert declared == {line.split()[-1] for line in symbols.splitlines()}


@BOTH
def test_libraries_hold_nothing_of_nvidia_and_no_path(library: str) -> None:
    path = support.libraries() / library
    undefined = _tool("nm", "-D", "--undefined-only", path)
    assert not re.search(r"\b(cu[A-Z]|cuda|nv|_?cute|cutlass|mlir)", undefined)
    data = path.read_bytes()
    for trace in (str(support.REPO), str(Path.home()), sys.prefix, "site-packages", "/include/", "/tmp/"):
        assert trace.encode() not in data, trace


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """Another folder, and another name of it."""
    source = _copy_of_sources(tmp_path / "a rather different place" / "r")
    support.build_libraries(source, tmp_path / "built", tmp_path / "scratch")
    for name in (LIBFA3, BINDING):
        assert (tmp_path / "built/fa3/native" / name).read_bytes() == (support.libraries() / name).read_bytes(), name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = _copy_of_sources(tmp_path_factory.mktemp("wheel") / "runtime")
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", "dist"]
    result = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (path,) = (source / "dist").iterdir()
    return path


def test_the_wheel_is_bound_to_a_platform_and_to_no_python(wheel: Path) -> None:
    assert re.fullmatch(r"fa3_runtime-[0-9.]+-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        (metadata,) = (files.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {f"fa3/native/{name}" for name in (LIBFA3, BINDING, "fa3.h", "__init__.py")} <= names
    assert {"fa3/contract.py", "fa3/py.typed", "fa3/runtime/__init__.py"} <= names
    assert not [name for name in names if name.endswith((".cpp", ".o", ".map"))]
    requirements = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert [text for text in requirements if "extra ==" not in text] == ["apache-tvm-ffi>=0.1.15.post2"]


def test_the_wheel_alone_serves_python(wheel: Path, tmp_path: Path) -> None:
    """The binding of an unpacked wheel finds its library and TVM-FFI's."""
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "site")
    bundle = support.write_bundle(tmp_path / "bundle")
    code = (
        "import sys, tvm_ffi, fa3.native\n"
        f"assert fa3.native.__file__.startswith({str(tmp_path)!r})\n"
        "module = tvm_ffi.load_module(str(fa3.native.BINDING))\n"
        f"module.kernel(module.load_bundle({str(bundle)!r}), {CAUSAL.name!r})\n"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", "error: no C++ compiler: 'no-such-compiler' is not on PATH; install one"),
        ("false", "error: false failed with exit code 1 on libfa3.so; it says why above"),
    ],
)
@pytest.mark.parametrize("builder", ["build_ext", "editable_wheel"])
def test_a_build_that_fails_says_why_in_one_line(compiler: str, message: str, builder: str, tmp_path: Path) -> None:
    source = _copy_of_sources(tmp_path / "runtime")
    command = [sys.executable, "setup.py", "-q", builder]
    environment = {**os.environ, "CXX": compiler}
    result = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(message)


# ---- C --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/native/use_fa3.c, compiled as strict C."""
    path = tmp_path_factory.mktemp("c") / "use_fa3"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    include = ["-I", str(support.RUNTIME / "fa3" / "native")]
    libraries = [str(support.libraries() / LIBFA3), f"-Wl,-rpath,{support.libraries()}", "-ldl", "-lm"]
    source = str(HERE / "use_fa3.c")
    subprocess.run([CC, "-std=c11", *warnings, *include, source, "-o", str(path), *libraries], check=True)
    return path


@pytest.mark.parametrize("standard", ["c99", "c++17"])
def test_the_header_stands_alone(standard: str) -> None:
    language, compiler = ("c", CC) if standard == "c99" else ("c++", CXX)
    header = support.RUNTIME / "fa3" / "native" / "fa3.h"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language]
    subprocess.run([compiler, *flags, str(header)], check=True)


def test_a_c_program_uses_a_bundle(program: Path, tmp_path: Path) -> None:
    bundle = support.write_bundle(tmp_path)
    lines = _tool(program, bundle, CAUSAL.name).splitlines()
    assert lines[0] == f"{CAUSAL.name}: {len(support.PLANS)} kernels"
    assert "param seqlen_k i32 200" in lines


def test_a_c_program_sees_errors(program: Path, tmp_path: Path) -> None:
    result = subprocess.run([program, tmp_path, CAUSAL.name], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        f"open: cannot read {tmp_path}/index.txt: No such file or directory\n",
    )


@pytest.mark.gpu
@pytest.mark.skipif(not support.has_driver(), reason="this machine has no driver")
@pytest.mark.parametrize("name", ["fwd_bf16_d128_causal_sm90a", "fwd_fp16_d64_full_sm90a", "fwd_bf16_d256_full_sm90a"])
def test_a_c_program_runs_a_kernel(program: Path, name: str) -> None:
    assert "worst error" in _tool(program, support.REPO / "build" / "bundle", name, "run")
