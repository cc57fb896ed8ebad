"""Executables whose content was changed and whose digest is right."""

import copy
from collections.abc import Callable
from typing import Any

from hloipu_runtime.executable import Executable, to_frame
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program_io.frame.frame import Frame, encode_frame
from tests.support.program_texts import small_programs

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def executables() -> dict[str, Executable]:
    """Return small executables by name."""
    machine = load_machine("tiny")
    return {
        name: Executable(program, machine, sources={"sum": "train.py:7"}, fingerprint="ab" * 16)
        for name, program in small_programs().items()
    }


def file_bytes(executable: Executable) -> bytes:
    """Return the bytes of an executable's file."""
    return b"".join(encode_frame(to_frame(executable)))


def forged(executable: Executable, change: Change) -> Frame:
    """Return the frame of an executable after a change of its data and its arrays, in place."""
    frame = to_frame(executable)
    meta, arrays = copy.deepcopy(frame.meta), dict(frame.arrays)
    change(meta, arrays)
    return Frame(frame.kind, meta, arrays)
