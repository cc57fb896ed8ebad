"""Object code is put in memory as LLVM's own linker puts it, or is left to that."""

import ctypes
import platform
import struct
import sys

import numpy as np
import pytest

from hloipu_runtime.kernels.native.llvm import Llvm, address_of
from hloipu_runtime.kernels.native.object_code import loaded
from hloipu_runtime.kernels.native.settings import is_there

pytestmark = pytest.mark.skipif(
    not is_there() or (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="LLVM is not installed, or its object files are others",
)

TABLE = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int64)
TEXT = f"""
@table = private constant [8 x i64] [{", ".join(f"i64 {x}" for x in TABLE)}]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare double @llvm.fma.f64(double, double, double)
define internal void @copy(ptr %to, i64 %size) noinline {{
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr @table, i64 %size, i1 false)
  ret void
}}
define void @second(ptr %arguments) {{
  %size = load i64, ptr %arguments
  %at = getelementptr i64, ptr %arguments, i64 1
  call void @copy(ptr %at, i64 %size)
  %last.at = getelementptr i64, ptr %arguments, i64 9
  %x = load double, ptr %last.at
  %y = fmul double %x, 0x400921FB54442D18
  store double %y, ptr %last.at
  ret void
}}
"""
"""It refers to a table, a constant, a function of its own and one of the system's."""


def _ran(address: int) -> list[int | float]:
    given = np.zeros(10, np.int64)
    given[0] = 8 * 7
    given[9:].view(np.float64)[0] = 2.5
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(address_of(given))
    return [*given[1:9].tolist(), float(given[9:].view(np.float64)[0])]


def _sections(code: bytes) -> list[tuple[int, ...]]:
    (first,), (size, count) = (
        struct.unpack_from("<Q", code, 40),
        struct.unpack_from("<HH", code, 58),
    )
    return [struct.unpack_from("<IIQQQQIIQQ", code, first + n * size) for n in range(count)]


def _changed(code: bytes, at: int, value: bytes) -> bytes:
    return code[:at] + value + code[at + len(value) :]


def test_code_refers_to_what_it_did_where_llvm_links_it() -> None:
    llvm = Llvm()
    code = llvm.compiled(TEXT)
    mine = loaded(code, "second")
    theirs, held = llvm.linked("second", code)
    assert mine is not None
    assert held
    expected = [*TABLE[:7].tolist(), 0, 2.5 * np.pi]
    assert _ran(mine.address) == _ran(theirs) == expected


def test_what_is_not_known_is_left_to_llvm() -> None:
    code = Llvm().compiled(TEXT)
    sections = _sections(code)
    relocations = next(x for x in sections if x[1] == 4 and sections[x[7]][2] & 4)  # of code
    names = next(sections[x[6]] for x in sections if x[1] == 2)
    called = code.index(b"memcpy\0", names[4])
    for name, changed in (
        ("no object file", b"no object file at all"),
        ("another machine's", _changed(code, 18, b"\xb7\0")),
        ("a shared object", _changed(code, 16, b"\3\0")),
        ("another relocation", _changed(code, relocations[4] + 8, b"\2")),
        ("an unknown function", _changed(code, called, b"memcpz")),
    ):
        assert loaded(changed, "second") is None, name
    assert loaded(code, "third") is None


def test_what_is_not_whole_is_left_to_llvm() -> None:
    llvm = Llvm()
    code = llvm.compiled(TEXT)
    for size in range(0, len(code), 8):
        assert loaded(code[:size], "second") is None, size
    with pytest.raises(RuntimeError):
        llvm.linked("second", code[: len(code) // 2])
    first = struct.unpack_from("<Q", code, 40)[0]
    executable = max(range(len(_sections(code))), key=lambda n: _sections(code)[n][2] & 4)  # code
    for name, at, value in (
        ("sections behind the end", 40, b"\xff" * 8),
        ("a name that is no text", code.index(b"second\0"), b"\xff"),
        ("a section of all memory", first + 64 * executable + 32, b"\xff" * 7),
    ):
        assert loaded(_changed(code, at, value), "second") is None, name
