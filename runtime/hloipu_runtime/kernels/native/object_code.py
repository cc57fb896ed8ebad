"""Loader of compiled kernels: puts an ELF object file of x86-64 into executable memory.

LLVM's linker does it for any, but LLVM takes some 45 MiB and 50 ms to import, and code that was
kept needs no other part of it. Kernels are written for memory anywhere (the large code model):
what they refer to is an absolute address. Sources: ELF-64 Object File Format 1.5; System V ABI,
AMD64 supplement, 4.4.
"""

import ctypes
import mmap
from struct import error as StructError
from struct import pack_into, unpack_from
from typing import NamedTuple

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _RELOCATIONS_OF_NO_ADDEND = 2, 4, 9
"""Types of sections."""
_WRITTEN, _LOADED = 1, 2
"""Flags of sections."""
_ABSOLUTE = 1
"""The relocation R_X86_64_64."""
_UNDEFINED, _FIRST_SPECIAL = 0, 0xFF00
"""Numbers of sections that are none."""
_EXTERNAL = ("memcpy", "memmove", "memset")
"""What LLVM may call that no text of a kernel names."""


class LoadedCode(NamedTuple):
    """Code in memory."""

    address: int
    """Of the function."""
    memory: mmap.mmap
    """To be held as long as it may be called."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def loaded(code: bytes, function: str) -> LoadedCode | None:
    """Return a function of an object file, ready to run; None for what only LLVM can link."""
    try:
        return _loaded(code, function)
    except (IndexError, OSError, OverflowError, StructError, ValueError):
        return None  # it is not whole, or there is no memory: LLVM says so where it cannot either


def _loaded(code: bytes, function: str) -> LoadedCode | None:
    if code[:6] != _ELF_64_LITTLE or unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
        return None
    (first,), (size, count) = unpack_from("<Q", code, 40), unpack_from("<HH", code, 58)
    sections = [_Section(*unpack_from("<IIQQQQIIQQ", code, first + n * size)) for n in range(count)]
    places, end = dict[int, int](), 0
    for number, section in enumerate(sections):
        if section.flags & _LOADED:
            if section.flags & _WRITTEN:
                return None
            alignment = max(1, section.alignment)
            places[number] = -(-end // alignment) * alignment
            end = places[number] + section.size
        if section.type == _RELOCATIONS_OF_NO_ADDEND:
            return None
    memory = mmap.mmap(-1, max(end, 1), mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, place in places.items():
        section = sections[number]
        memory[place : place + section.size] = code[section.offset :][: section.size]
    symbols = _symbols(code, sections, {number: base + at for number, at in places.items()})
    for section in sections:
        if section.type != _RELOCATIONS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, section.entry_size):
            offset, kind, symbol, addend = unpack_from("<QIIq", code, at)
            value = symbols[symbol][1]
            if kind != _ABSOLUTE or value is None:
                return None
            pack_into("<Q", memory, places[section.info] + offset, value + addend)
    address = dict(symbols).get(function)
    return LoadedCode(address, memory) if address and _may_run(base, len(memory)) else None


def _symbols(
    code: bytes, sections: list[_Section], addresses: dict[int, int]
) -> list[tuple[str, int | None]]:
    """Return the name of each symbol, and its address where there is one."""
    symbols: list[tuple[str, int | None]] = []
    for table in sections:
        if table.type != _SYMBOLS:
            continue
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, table.entry_size):
            name_at, _, _, section, value, _ = unpack_from("<IBBHQQ", code, at)
            name = code[names + name_at : code.index(b"\0", names + name_at)].decode()
            address = None
            if section == _UNDEFINED and name in _EXTERNAL:
                address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
            elif section in addresses and section < _FIRST_SPECIAL:
                address = addresses[section] + value
            symbols.append((name, address))
    return symbols


def _may_run(address: int, size: int) -> bool:
    """Make memory code, which nobody writes any more; say whether the system allows it."""
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) == 0)
