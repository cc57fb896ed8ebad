"""Compiled code is kept where nobody else can write, found again, and never taken for another."""

import errno
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.native import counted, rounding
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.llvm import CodePointer, Compiler, Llvm, address_of
from hloipu_runtime.kernels.native.loop import Kernel, Operand, text_of
from hloipu_runtime.kernels.native.settings import (
    COMPILING_WORK,
    Settings,
    is_there,
    native_kernels,
)

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")

NEGATE = Kernel(
    (Operand("f32", is_shared=False),), (), ((1, Instruction("fneg", (0,), "f32")),), (1,)
)


def _code(folder: Path, *, compiles: bool) -> CodePointer | None:
    """Return a kernel's code as a new process gets it."""
    return Compiler().code(lambda name: text_of(NEGATE, name), folder, compiles=compiles)


def _spoilt(folder: Path) -> Iterator[str]:
    """Do in turn what code may not be taken for good after; say what was done."""
    (kept,) = folder.glob("*.o")
    whole = kept.read_bytes()
    for name, changed in (
        ("a byte is another", bytes([whole[0] ^ 1]) + whole[1:]),
        ("the end is missing", whole[:-9]),
        ("it is empty", b""),
    ):
        kept.write_bytes(changed)
        yield name
    kept.write_bytes(whole)
    folder.chmod(0o755)
    yield "others can reach the folder"
    folder.chmod(0o700)
    kept.rename(folder / "away")
    kept.symlink_to(folder / "away")
    yield "it is a link"


def test_code_is_kept_and_not_taken_where_it_may_be_another(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert _code(folder, compiles=False) is None
    assert _code(folder, compiles=True)
    (kept,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, kept.stat().st_mode & 0o077) == (0o700, 0)
    code = _code(folder, compiles=False)
    assert code is not None
    x, out = np.arange(9, dtype=np.float32), np.empty(9, np.float32)
    arguments = np.array([1, 9, address_of(x), 0, address_of(out), 0])
    code(address_of(arguments))
    assert out.tolist() == (-x).tolist()
    for what in _spoilt(folder):
        assert _code(folder, compiles=False) is None, what


def test_code_is_taken_where_the_folder_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    folder = tmp_path / "cache"
    assert _code(folder, compiles=True)
    monkeypatch.setattr(os, "utime", refused)
    assert _code(folder, compiles=False)


def test_what_cannot_be_linked_is_left_to_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Llvm, "compiled", lambda llvm, text: b"no object file")
    compiler = Compiler()
    made = compiler.code(lambda name: text_of(NEGATE, name), tmp_path / "cache", compiles=True)
    assert made is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="LLVM links it"
)
def test_code_that_was_kept_is_loaded_without_llvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM takes some 45 MiB; what it said of the processor is kept, and asked for if spoilt."""
    folder, asked = tmp_path / "cache", list[Llvm]()
    real = Llvm.__init__

    def made(llvm: Llvm) -> None:
        asked.append(llvm)
        real(llvm)

    monkeypatch.setattr(Llvm, "__init__", made)

    def code() -> CodePointer | None:
        compiler = Compiler(folder)
        return compiler.code(lambda name: text_of(NEGATE, name), folder, compiles=True)

    assert code()
    assert len(asked) == 1
    (kept,) = folder.glob("*.processor")
    assert code()
    assert len(asked) == 1  # still
    told = Compiler(folder)._processor
    assert told == Llvm().processor
    asked.clear()
    kept.write_bytes(b"0another processor")
    assert Compiler(folder)._processor == told
    assert len(asked) == 1


def test_what_llvm_said_is_not_kept_where_its_files_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another LLVM would be taken for the one that said it."""
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    Compiler(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_numbers_have_no_address() -> None:
    with pytest.raises(TypeError, match="float32 is not an array"):
        address_of(np.float32(1))  # type: ignore[arg-type]  # what kernels must not be given


@pytest.mark.parametrize("is_on", [False, True])
def test_nothing_is_compiled_where_that_was_not_chosen(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "the_compiler", Compiler)  # one that knows nothing yet
    rounding.rounding_kernel.cache_clear()
    x = np.ones(COMPILING_WORK + 1, np.float32)
    with native_kernels(Settings(is_on, folder=tmp_path / "cache")):
        round_to(x, "f8e3m4")
    assert (tmp_path / "cache").exists() == is_on
    rounding.rounding_kernel.cache_clear()
