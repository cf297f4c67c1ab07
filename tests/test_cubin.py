"""Cubins and machine code, read without and with NVIDIA's tool."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from fa3.contract import PARAM_SIZE
from hypothesis import given
from hypothesis import strategies as st

from fa3gen import abi, cubin, sass
from fa3gen.cubin import CubinError
from fa3gen.errors import MachineError
from fa3gen.sass import SassCounts
from tests.built_kernels import NAME, built, plans

SASS = """
.text.k_0:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 EXIT ;
        /*0020*/              @!UP1 USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
        /*0030*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0050*/               @P2 HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24 ;
        /*0060*/                   STL.64 [R1], R2 ;
        /*12340*/                  LDL R2, [R1+0x8] ;
        /*12350*/                  MUFU.EX2 R2, R2 ;
"""


@pytest.mark.parametrize("name", [plan.name for plan in plans()])
def test_a_cubin_tells_what_its_kernel_takes(name: str) -> None:
    kernel = built()[name]
    plan = kernel.plan
    found = cubin.parse(kernel.cubin)
    assert found.symbol == f"{name}_0"
    assert found.sm == 90
    assert found.threads == plan.threads
    assert found.frame_bytes == 0
    assert 0 < found.registers <= 255
    assert 0 < found.code_bytes < len(kernel.cubin)
    assert [p.ordinal for p in found.params] == list(range(len(found.params)))
    assert [p.size for p in found.params] == [PARAM_SIZE[p.kind] for p in abi.signature(plan).params]
    ends = [p.offset + p.size for p in found.params]
    assert all(end <= p.offset for end, p in zip(ends, found.params[1:], strict=False))
    assert f"Used {found.registers} registers" in "\n".join(kernel.remarks)  # ptxas says the same


@given(st.data())
def test_a_cubin_that_is_cut_off_is_refused(data: st.DataObject) -> None:
    whole = built()[NAME].cubin
    with pytest.raises(CubinError, match=r"cut off|damaged"):
        cubin.parse(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.data())
def test_a_cubin_with_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    changed = bytearray(built()[NAME].cubin)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CubinError):
        cubin.parse(bytes(changed))


def test_other_files_are_no_cubins() -> None:
    with pytest.raises(CubinError, match="not a cubin"):
        cubin.parse(Path(sys.executable).resolve().read_bytes())
    with pytest.raises(CubinError, match="not a cubin"):
        cubin.parse(b"#!/bin/sh\n" + bytes(100))
    with pytest.raises(CubinError, match="damaged"):
        cubin.parse(b"")


def test_instructions_are_counted() -> None:
    assert sass.count(SASS) == SassCounts(instructions=9, hgmma=2, local=2, setmaxreg=(0x18, 0xF0))
    assert sass.count("") == SassCounts(0, 0, 0, ())


def test_without_a_disassembler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_tool", lambda: None)
    with pytest.raises(MachineError, match="there is no nvdisasm\n  next: pip install nvidia-cuda-nvdisasm"):
        sass.disassemble(b"")


def test_what_the_disassembler_refuses_is_an_error() -> None:
    with pytest.raises(MachineError, match="nvdisasm failed"):
        sass.disassemble(b"no cubin")
