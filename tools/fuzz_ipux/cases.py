"""Case number -> forged file: deterministic, so that a case can be made again anywhere."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hloipu_compiler.analysis.source_lines import source_lines
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.executable import Executable, to_frame
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program_io.frame.frame import Frame, encode_frame
from tests.support.program_texts import small_programs
from tests.support.stacked_program import stacked
from tools.fuzz_ipux.mutations import mutate

MOST_CHARACTERS = 30_000
"""Of a module that is compiled to be mutated: running a mutant is not to take long."""


@dataclass(frozen=True)
class Cases:
    """The executables that are forged, and the seed."""

    seed: int
    frames: Sequence[Frame]

    def data(self, number: int) -> bytes:
        """Return the file of a number; raises ArtefactError where no file can hold its data."""
        rng = random.Random(f"{self.seed}:{number}")
        frame = rng.choice(self.frames)
        meta, arrays = mutate(frame.meta, dict(frame.arrays), rng)
        return b"".join(encode_frame(Frame(frame.kind, meta, arrays)))


def read(seed: int, folders: Sequence[Path]) -> Cases:
    """Compile the modules of some folders, those that have a program, and add small programs."""
    machine = load_machine("tiny")
    programs = (*small_programs().values(), stacked().program)
    executables = [Executable(program, machine) for program in programs]
    for path in (path for folder in folders for path in sorted(folder.glob("*.hlo"))):
        text = path.read_text(encoding="utf-8")
        if len(text) > MOST_CHARACTERS:
            continue
        module = parse(text)
        try:
            verify(module)
            program = compile_module(module, CompileRequest(machine)).program
        except (InvalidHloError, UnsupportedError):
            continue
        executables.append(Executable(program, machine, sources=source_lines(module)))
    return Cases(seed, [to_frame(executable) for executable in executables])
