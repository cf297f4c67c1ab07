"""Reads a cubin (ELF) without any tool: the kernel's symbol, registers, stack, static shared memory and parameters."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod

from fa3gen.errors import Fa3genError

_MACHINE_CUDA = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_INFO = ".nv.info"

_NO_BITS = 8  # type of a section that takes no space in the file

# Attributes of .nv.info sections; format 4 has a length and that many bytes, the others have their value in its place.
_FORMAT_SIZED = 4
_FRAME_SIZE = 0x11
_KPARAM_INFO = 0x17
_REQNTID = 0x10
_REGCOUNT = 0x2F


class CubinError(Fa3genError):
    """Not a cubin of one kernel, or damaged."""


@dataclass(frozen=True)
class CubinParam:
    """A parameter's place in the kernel's parameter space, in bytes."""

    ordinal: int
    offset: int
    size: int


@dataclass(frozen=True)
class Cubin:
    """What a cubin says of its one kernel."""

    symbol: str
    sm: int  # compute capability, 90 for sm_90a
    registers: int  # a thread's, at entry
    frame_bytes: int  # of a thread's stack
    threads: int  # of a CTA
    static_smem_bytes: int
    code_bytes: int
    params: tuple[CubinParam, ...]  # by ordinal


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    offset: int
    size: int
    link: int


def parse(data: bytes) -> Cubin:
    """Reads a cubin; raises CubinError where ``data`` is none, is cut off or holds several kernels."""
    try:
        return _parse(data)
    except (struct.error, ArithmeticError, ValueError, LookupError) as error:
        raise CubinError(f"a damaged cubin: {error!r}") from error


def _parse(data: bytes) -> Cubin:
    ident, _, machine, _, _, segments_at, sections_at, flags, _, *sizes = _HEADER.unpack_from(data)
    segment_size, segments, section_size, count, names = sizes
    if ident[:4] != b"\x7fELF" or machine != _MACHINE_CUDA:
        raise CubinError("not a cubin")
    tables_end = max(segments_at + segments * segment_size, sections_at + count * section_size)
    if tables_end > len(data):
        raise CubinError(f"a cubin of {len(data)} bytes that is cut off")
    table = _sections(data, sections_at, section_size, count, names)
    if any(s.offset + s.size > len(data) for s in table if s.type != _NO_BITS):
        raise CubinError(f"a cubin of {len(data)} bytes that is cut off")
    sections = {section.name: section for section in table}
    kernels = [name[len(_INFO) + 1 :] for name in sections if name.startswith(_INFO + ".")]
    if len(kernels) != 1:
        raise CubinError(f"a cubin of {len(kernels)} kernels; a bundle holds cubins of one")
    symbol = kernels[0]
    common = _attributes(data, sections[_INFO])
    index = _symbols(data, sections[".symtab"], table).index(symbol)
    own = _attributes(data, sections[f"{_INFO}.{symbol}"])
    shared = sections.get(f".nv.shared.{symbol}")
    return Cubin(
        symbol=symbol,
        sm=flags & 0xFF,
        registers=_of_symbol(common, _REGCOUNT, index),
        frame_bytes=_of_symbol(common, _FRAME_SIZE, index),
        threads=prod(struct.unpack("<3I", own[_REQNTID][0])) if _REQNTID in own else 0,
        static_smem_bytes=shared.size if shared else 0,
        code_bytes=sections[f".text.{symbol}"].size,
        params=tuple(sorted(map(_param, own.get(_KPARAM_INFO, [])), key=lambda p: p.ordinal)),
    )


def _sections(data: bytes, offset: int, size: int, count: int, names: int) -> list[_Section]:
    rows = [_SECTION.unpack_from(data, offset + i * size) for i in range(count)]
    strings = rows[names][4]
    return [
        _Section(_string(data, strings + name_offset), kind, at, length, link)
        for name_offset, kind, _, _, at, length, link, *_ in rows
    ]


def _attributes(data: bytes, section: _Section) -> dict[int, list[bytes]]:
    """The sized attributes of an info section."""
    found: dict[int, list[bytes]] = {}
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _FORMAT_SIZED:
            found.setdefault(attribute, []).append(data[at : at + value])
            at += value
    return found


def _of_symbol(attributes: dict[int, list[bytes]], attribute: int, index: int) -> int:
    """An attribute that the common info section gives for each symbol, by the symbol's index."""
    numbers = dict(struct.unpack("<2I", value) for value in attributes[attribute])
    return int(numbers[index])


def _symbols(data: bytes, symbols: _Section, table: list[_Section]) -> list[str]:
    strings = table[symbols.link].offset
    return [
        _string(data, strings + _SYMBOL.unpack_from(data, at)[0])
        for at in range(symbols.offset, symbols.offset + symbols.size, _SYMBOL.size)
    ]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")


def _param(value: bytes) -> CubinParam:
    _, ordinal, offset, packed = struct.unpack("<IHHI", value)
    return CubinParam(ordinal, offset, packed >> 18)
