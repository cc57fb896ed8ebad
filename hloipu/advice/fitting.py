"""What makes a program fit that does not: changes, mildest first, each compiled with."""

from collections.abc import Iterator, Mapping
from typing import Any

from hloipu.advice.trials import Candidate, Compile, Trials, narrowed
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.change import Change, Fitting

WANTED = 2
"""Changes to find, so that there is a choice."""
_PROPORTIONS = (0.3, 0.1)
_LARGER = (2, 4)
"""Times the memory of a tile that a machine which might be built could have."""
_HALF = frozenset({"f16"})


def what_fits(
    module: Module,
    options: Options,
    program: CompiledProgram,
    compile_once: Compile,
    *,
    most_seconds: float,
) -> Fitting:
    """Return changes with which a program fits, of each kind the mildest; stops at two.

    Takes `most_seconds` and one compilation more at most.
    """
    trials = Trials(module, options, program, compile_once, most_seconds=most_seconds)
    found: list[Change] = []
    failed: list[Change] = []
    is_complete = True
    for family in _families(options, program):
        for candidate in family:
            if not trials.has_time:
                is_complete = False
                break
            change = trials.outcome(candidate)
            if change is None:
                continue
            (found if change.fits else failed).append(change)
            if change.fits:
                break
        if len(found) >= WANTED or not is_complete:
            break
    memory = program.memory
    tiles = program.machine.chip.tiles_per_ipu * program.program.ipus
    return Fitting(
        tuple(found), tuple(failed), memory.total_bytes, memory.available_bytes * tiles, is_complete
    )


def _families(options: Options, program: CompiledProgram) -> Iterator[list[Candidate]]:
    """Yield kinds of changes, within each the mildest first."""
    lean: Mapping[str, Any] = {}
    if not options.passes and options.recompute != "cheap":
        lean = {"recompute": "cheap"}
    if options.recompute == "none":
        yield [Candidate("flag", lean)]
    given = options.available_memory_proportion
    smaller = [{"available_memory_proportion": p} for p in _PROPORTIONS if p < given]
    yield [Candidate("flag", {**settings, **lean}) for settings in smaller]
    if options.partials_type != "f16" and _has_half(program):
        half = {"partials_type": "f16"}
        yield [Candidate("flag", {**half, **more}) for more in ({}, *smaller[-1:])]
    if _has_single(program):
        yield [narrowed(options, lean), *(narrowed(options, {**s, **lean}) for s in smaller[-1:])]
    yield [_larger(options, program, times) for times in _LARGER]


def _has_half(program: CompiledProgram) -> bool:
    return any(v.element_type in _HALF for v in program.program.variables)


def _has_single(program: CompiledProgram) -> bool:
    return any(v.element_type == "f32" for v in program.program.variables)


def _larger(options: Options, program: CompiledProgram, times: int) -> Candidate:
    """Return a machine like the one asked for, with more memory on each tile."""
    memory = program.machine.memory
    sizes = {
        "bytes_per_tile": memory.bytes_per_tile * times,
        "executable_bytes": memory.executable_bytes * times,
    }
    kept = tuple(item for item in options.set if item[0].rpartition(".")[2] not in sizes)
    settings = {"set": (*kept, *((key, str(size)) for key, size in sizes.items()))}
    words = f"a machine with {times} times the memory: " + " ".join(
        f"--set {key}={size}" for key, size in sizes.items()
    )
    return Candidate("machine", settings, words)
