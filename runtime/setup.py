"""Builds the two native libraries into ``fa3/native`` and tags the wheel for the platform, not for one Python.

The libraries see no Python header, so one wheel serves every Python 3.  ``CXX`` names another C++17 compiler than
``c++``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
HEADERS = Path("fa3", "native")


class Library(NamedTuple):
    """A shared library: its sources, and the libraries it needs besides libc."""

    sources: list[str]
    needs_tvm_ffi: bool


BINDING = "tvm_ffi.cpp"
LIBRARIES = {
    "fa3.native.libfa3": Library(sorted(str(p) for p in NATIVE.glob("*.cpp") if p.name != BINDING), False),
    "fa3.native.libfa3_tvm_ffi": Library([str(NATIVE / BINDING)], True),
}

COMPILE = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-ffunction-sections"]
WARNINGS = ["-Wall", "-Wextra", "-Werror=return-type"]
# Nothing but libc is needed at run time, no symbol of the C++ library is offered to others, and the library stays
# loaded: threads may be inside.
LINK = ["-shared", "-static-libstdc++", "-static-libgcc", "-s", "-Wl,--gc-sections"]
LINK += [
    f"-Wl,--version-script={NATIVE / 'exports.map'}",
    "-Wl,--as-needed",
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-z,nodelete",
]

NO_COMPILER = (
    "error: no C++ compiler: {!r} is not on PATH; install one for C++17 (Debian and Ubuntu: apt install g++; "
    "Fedora: dnf install gcc-c++ libstdc++-static), or name one with CXX"
)


def tvm_ffi_flags() -> tuple[list[str], list[str]]:
    """Compiler and linker flags for TVM-FFI's C interface."""
    from tvm_ffi import libinfo

    includes = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
    compile_flags = [
        flag for folder in sorted(includes) for flag in ("-isystem", folder, f"-ffile-prefix-map={folder}=tvm-ffi")
    ]
    return compile_flags, [libinfo.find_libtvm_ffi()]


class BuildLibraries(build_ext):
    """Each "extension" is a plain shared library made by one call of the compiler."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        library = LIBRARIES[ext.name]
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CXX") or "c++")
        if shutil.which(compiler[0]) is None:
            raise SystemExit(NO_COMPILER.format(compiler[0]))
        # Paths in messages and debug facts are relative, so that the folder of the build is in no library.
        command = [
            *compiler,
            *COMPILE,
            *WARNINGS,
            f"-I{HEADERS}",
            f"-ffile-prefix-map={Path.cwd()}=.",
        ]
        link = [*LINK, f"-Wl,-soname,{target.name}"]
        if library.needs_tvm_ffi:
            compile_flags, libraries = tvm_ffi_flags()
            command += compile_flags
            link += [str(target.with_name("libfa3.so")), *libraries, "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"]
        else:
            link += ["-ldl", "-pthread"]
        code = subprocess.run([*command, *ext.sources, "-o", str(target), *link]).returncode
        if code != 0:
            raise SystemExit(f"error: {compiler[0]} failed with exit code {code} on {target.name}; it says why above")


class PlatformWheel(bdist_wheel):
    """py3-none-<platform>: native code, bound to no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[Extension(name, library.sources) for name, library in LIBRARIES.items()],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
)
