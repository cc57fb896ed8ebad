"""Machine code by LLVM (llvmlite), kept in the cache folder.

A kernel's text, the processor and LLVM's version name its code: what was compiled for another
processor is not found. Code is loaded only from a folder that nobody but its user can write to.
"""

import ctypes
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hloipu_runtime.cache_folder import make_room, why_not_own

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
        return Compiler()
    except (ImportError, OSError, RuntimeError):
        return None


class Compiler:
    """Compiles and links kernels for the processor that it runs on."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        if tuple(llvm.llvm_version_info) < _OLDEST:
            raise RuntimeError(f"LLVM {llvm.llvm_version_info} is older than {_OLDEST}")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm = llvm
        self._lock = Lock()
        self._machine = self._target_machine()
        self._linker = llvm.create_lljit_compiler(self._target_machine())
        features = llvm.get_host_cpu_features()
        self.halves = bool(features.get("f16c") or features.get("fullfp16"))
        """Whether the processor converts f32 to f16 and back, whatever its mode."""
        version = ".".join(map(str, llvm.llvm_version_info))
        self._name = f"{version} {llvm.get_host_cpu_name()} {features.flatten()} {_OPTIMISATION}"
        self._functions: dict[str, CodePointer] = {}

    def _target_machine(self) -> Any:
        llvm = self._llvm
        return llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=_OPTIMISATION,
            jit=True,
        )

    def code(
        self, text_of: Callable[[str], str], folder: Path | None, *, compiles: bool
    ) -> CodePointer | None:
        """Return the function of a text.

        None if it was not compiled before and is not to be now, or if LLVM cannot compile or link.
        `text_of` gives the text of a function of some name. In `folder`, if there is one, code is
        kept.
        """
        whole = f"{self._name}\n{text_of('kernel')}"
        name = "k" + hashlib.sha256(whole.encode()).hexdigest()
        with self._lock:
            if name in self._functions:
                return self._functions[name]
            path = None if folder is None else folder / f"{name}{_SUFFIX}"
            kept = None if path is None else _read(path)
            if kept is None and not compiles:
                return None
            try:
                code = kept or self._compiled(text_of(name))
                function = self._linked(name, code)
            except RuntimeError:  # what LLVM cannot compile or link here is numpy's
                return None
            if path is not None and kept is None:
                _write(path, code)
            return function

    def _compiled(self, text: str) -> bytes:
        llvm = self._llvm
        module = llvm.parse_assembly(text)
        tuning = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION)
        tuning.loop_vectorization = tuning.loop_interleaving = True
        tuning.loop_unrolling = tuning.slp_vectorization = False
        passes = llvm.create_pass_builder(self._machine, tuning)
        passes.getModulePassManager().run(module, passes)
        return bytes(self._machine.emit_object(module))

    def _linked(self, name: str, code: bytes) -> CodePointer:
        builder = self._llvm.JITLibraryBuilder()
        library = builder.add_object_img(code).export_symbol(name).link(self._linker, name)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library[name])
        function.holders = library, self._linker  # type: ignore[attr-defined]  # of the code
        self._functions[name] = function
        return function


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
