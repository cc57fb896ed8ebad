"""Machine code by LLVM (llvmlite), kept in the cache folder.

A kernel's text, the processor and LLVM's version name its code: what was compiled for another
processor is not found. Code is loaded only from a folder that nobody but its user can write to.
What LLVM says of the processor is kept there too, so that loading code takes no LLVM.
"""

import ctypes
import hashlib
import importlib.util
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.cache_folder import make_room, why_not_own
from hloipu_runtime.kernels.native.object_code import loaded
from hloipu_runtime.kernels.native.settings import settings

CodePointer = Callable[[Any], None]
"""A kernel: takes an array of 64-bit integers or the address of a tuple, see `loop.text_of`."""

MOST_KEPT_BYTES = 64 << 20
"""Of code in the cache folder; a kernel takes some 3 KB."""
_SUFFIX = ".o"
_OPTIMISATION = 2
_OLDEST = (20,)
"""Of LLVM: that of llvmlite 0.45. Older ones do not know all that kernels are written in."""


@cache
def the_compiler() -> "Compiler | None":
    """Return the process's compiler; None where LLVM is too old, or has none for this processor."""
    try:
        return Compiler(settings().code_folder)
    except (ImportError, OSError, RuntimeError):
        return None


class Processor(NamedTuple):
    """What LLVM says of the processor."""

    name: str
    """Its own, LLVM's version and what they can do."""
    halves: bool
    """Whether it converts f32 to f16 and back, whatever its mode."""


class Llvm:
    """LLVM, for the processor that it runs on. It is imported when it is made."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        if tuple(llvm.llvm_version_info) < _OLDEST:
            raise RuntimeError(f"LLVM {llvm.llvm_version_info} is older than {_OLDEST}")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm = llvm
        self._features = llvm.get_host_cpu_features()
        self._machine = self._target_machine()
        version = ".".join(map(str, llvm.llvm_version_info))
        flags = self._features.flatten()
        name = f"{version} {llvm.get_host_cpu_name()} {flags} {_OPTIMISATION}"
        halves = bool(self._features.get("f16c") or self._features.get("fullfp16"))
        self.processor = Processor(name, halves)

    def _target_machine(self) -> Any:
        return self._llvm.Target.from_default_triple().create_target_machine(
            cpu=self._llvm.get_host_cpu_name(),
            features=self._features.flatten(),
            opt=_OPTIMISATION,
            jit=True,
        )

    def compiled(self, text: str) -> bytes:
        """Return the object code of a text; raises RuntimeError."""
        llvm = self._llvm
        module = llvm.parse_assembly(text)
        tuning = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
        tuning.loop_vectorization = tuning.loop_interleaving = True
        tuning.loop_unrolling = tuning.slp_vectorization = False
        passes = llvm.create_pass_builder(self._machine, tuning)
        passes.getModulePassManager().run(module, passes)
        return bytes(self._machine.emit_object(module))

    def linked(self, name: str, code: bytes) -> tuple[int, object]:
        """Return the address of a function, and what is to be held; raises RuntimeError."""
        builder = self._llvm.JITLibraryBuilder()
        library = builder.add_object_img(code).export_symbol(name).link(self._linker, name)
        return library[name], (library, self._linker)

    @cached_property
    def _linker(self) -> Any:
        return self._llvm.create_lljit_compiler(self._target_machine())


class Compiler:
    """Compiles and links kernels for the processor that it runs on."""

    def __init__(self, folder: Path | None = None) -> None:
        """Look in a folder for what LLVM said of this processor, or ask LLVM."""
        self._lock = Lock()
        self._functions: dict[str, CodePointer] = {}
        path = None if folder is None else _path_of_processor(folder)
        kept = None if path is None else _read(path)
        if kept:
            self._processor = Processor(kept[1:].decode(), halves=kept[:1] == b"1")
        else:
            self._processor = self._llvm.processor
            if path is not None:
                _write(path, f"{self.halves:d}{self._processor.name}".encode())

    @cached_property
    def _llvm(self) -> Llvm:
        return Llvm()

    @property
    def halves(self) -> bool:
        """Whether the processor converts f32 to f16 and back, whatever its mode."""
        return self._processor.halves

    def code(
        self, text_of: Callable[[str], str], folder: Path | None, *, compiles: bool
    ) -> CodePointer | None:
        """Return the function of a text.

        None if it was not compiled before and is not to be now, or if LLVM cannot compile or link.
        `text_of` gives the text of a function of some name. In `folder`, if there is one, code is
        kept.
        """
        whole = f"{self._processor.name}\n{text_of('kernel')}"
        name = "k" + hashlib.sha256(whole.encode()).hexdigest()
        with self._lock:
            if name in self._functions:
                return self._functions[name]
            path = None if folder is None else folder / f"{name}{_SUFFIX}"
            kept = None if path is None else _read(path)
            if kept is None and not compiles:
                return None
            try:
                code = kept or self._llvm.compiled(text_of(name))
                function = self._linked(name, code)
            except (ImportError, OSError, RuntimeError):  # what LLVM cannot do here is numpy's
                return None
            if path is not None and kept is None:
                _write(path, code)
            return function

    def _linked(self, name: str, code: bytes) -> CodePointer:
        address, holders = loaded(code, name) or self._llvm.linked(name, code)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        function.holders = holders  # type: ignore[attr-defined]  # of the code
        self._functions[name] = function
        return function


_PROCESSORS = Path("/proc/cpuinfo")
_MOST_OF_ONE = 1 << 13
"""Bytes that it says of one."""
_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags")


def _path_of_processor(folder: Path) -> Path | None:
    """Return the file that keeps what this LLVM says of this processor.

    None where the system does not tell processors apart, or LLVM's files.
    """
    with suppress(OSError):
        with _PROCESSORS.open("rb") as file:  # of many processors all of it takes milliseconds
            first = file.read(_MOST_OF_ONE).decode("ascii", "replace").split("\n\n")[0]
        lines = [line for line in first.splitlines() if line.startswith(_OF_PROCESSOR)]
        package = importlib.util.find_spec("llvmlite")
        if package is None or package.origin is None:
            return None
        files = [
            f"{path.name} {status.st_size} {status.st_mtime_ns}"
            for path in sorted((Path(package.origin).parent / "binding").glob("*llvmlite.*"))
            for status in (path.stat(),)
        ]
        if len(lines) < len(_OF_PROCESSOR) or not files:
            return None
        key = hashlib.sha256("\n".join([*lines, *files, str(_OPTIMISATION)]).encode())
        return folder / f"{key.hexdigest()}.processor"
    return None


_DIGEST_BYTES = 32


def _read(path: Path) -> bytes | None:
    """Return code that was written whole to a folder that is its user's alone, else None."""
    with suppress(OSError):
        kind = path.lstat()
        own = stat.S_ISREG(kind.st_mode) and kind.st_uid == os.geteuid()
        if not own or why_not_own(path.parent, make=False):
            return None
        whole = path.read_bytes()
        code, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
        if hashlib.sha256(code).digest() == digest:
            with suppress(OSError):  # where it may be read only, it is not removed either
                os.utime(path)
            return code
    return None


def _write(path: Path, code: bytes) -> None:
    """Keep code, if that can be."""
    with suppress(OSError):
        if not why_not_own(path.parent, make=True):
            # Not brought to the disk before it takes its name: the digest tells what is torn.
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            unfinished.touch(mode=0o600)
            unfinished.write_bytes(code + hashlib.sha256(code).digest())
            unfinished.replace(path)
            make_room(path.parent, _SUFFIX, MOST_KEPT_BYTES, kept=path)


POINTER_AT = object.__basicsize__
"""Of an array's memory within the array object, behind what every Python object begins with.

Extensions are compiled against this (numpy's C API: `PyArrayObject_fields.data`). The documented
ways by Python take 1 to 4 us an array, as long as some kernels. A tuple has its objects there,
behind its own beginning (`PyTupleObject.ob_item`), and `tuple.__basicsize__` counts none of them.
"""
_pointer_at = ctypes.c_void_p.from_address


def address_of(x: "np.ndarray[Any, Any]") -> int:
    """Return where an array's first element lies."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{type(x).__name__} is not an array")  # its memory would be taken for one
    return _pointer_at(id(x) + POINTER_AT).value or 0
