"""One case compiled, proved and priced within a limit of time, and what became of it."""

import time
import traceback
from dataclasses import dataclass

from hloipu.api import compile_verified, module_attributes
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, UnsupportedError
from tools.fuzz_blocks.cases import Case
from tools.fuzz_blocks.cases import case as case_of
from tools.fuzz_blocks.draws import SCALES
from tools.mapping import raised_after

COMPILED, UNPROVED, CRASHED, REFUSED, UNSUPPORTED, LATE = (
    "compiled", "not proved", "crashed", "refused", "unsupported", "too slow",
)  # fmt: skip
FAILURES = frozenset((UNPROVED, CRASHED, REFUSED))
"""A block is a valid program: the compiler may run out of time, or say what it does not support."""


class LateError(Exception):
    """A case took longer than it may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    seed: int
    name: str
    kind: str
    detail: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether the compiler is wrong."""
        return self.kind in FAILURES


def compiled(case: Case) -> CompiledProgram:
    """Compile a case as `hloipu estimate` does, and price it."""
    module = parse(case.text)
    verify(module)
    asked = resolve("estimate", dict(case.options), attributes=module_attributes(module))
    program = compile_verified(module, asked.options)
    program.profile()
    return program


def tried(case: Case, seconds: float) -> Outcome:
    """Return what becomes of a case."""
    start = time.monotonic()
    try:
        with raised_after(seconds, LateError):
            compiled(case)
        kind, detail = COMPILED, ""
    except LateError:
        kind, detail = LATE, f"longer than {seconds:g} s"
    except UnsupportedError as error:
        kind, detail = UNSUPPORTED, f"[{error.code}] {error.message}"
    except HloipuError as error:
        kind = UNPROVED if error.code == "E4050" else REFUSED
        detail = f"[{error.code}] {error.message}"
    except Exception as error:  # what the fuzzer looks for
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        kind, detail = CRASHED, f"{type(error).__name__} at {place}: {error}"
    return Outcome(case.seed, case.name, kind, detail, time.monotonic() - start)


def judged(seed: int, scale: str, seconds: float) -> Outcome:
    """Return what becomes of the case of a seed."""
    return tried(case_of(seed, SCALES[scale]), seconds)


def lost(seed: int, said: str, scale: str) -> Outcome:
    """Return what became of the case of a seed whose worker died."""
    return Outcome(seed, case_of(seed, SCALES[scale]).name, CRASHED, said, 0.0)
