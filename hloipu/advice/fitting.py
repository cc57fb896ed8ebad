"""What makes a program fit that does not: changes, mildest first, each compiled with."""

from collections.abc import Iterator, Mapping
from typing import Any

from hloipu.advice.trials import (
    Candidate,
    Compile,
    Limit,
    Trials,
    flags,
    narrowed,
    with_smaller_batch,
)
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.passes.smaller_batch import SmallerBatch
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.change import Change, Fitting

WANTED = 2
"""Changes to find, so that there is a choice."""
_PROPORTIONS = (0.3, 0.1)
_MOST_LARGER = 8
"""Times the memory of a tile, beyond which another machine is no advice."""
_FAR = 2
"""Times the memory there is, beyond which options alone will not do."""
_HALF = frozenset({"f16"})


def what_fits(
    module: Module,
    options: Options,
    program: CompiledProgram,
    compile_once: Compile,
    limit: Limit = Limit(),  # noqa: B008 - a constant
) -> Fitting:
    """Return changes with which a program fits, of each kind the mildest; stops at two.

    Compiles anew for each change that it tries, as often and as long as the limit allows.
    """
    trials = Trials(module, options, program, compile_once, limit)
    found: list[Change] = []
    failed: list[Change] = []
    is_complete = True
    for family in _families(module, options, program, failed):
        for candidate in family:
            if not trials.has_time:
                is_complete = False
                break
            change = trials.outcome(candidate)
            if change is None:
                is_complete = is_complete and trials.has_time
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


def _families(
    module: Module, options: Options, program: CompiledProgram, failed: list[Change]
) -> Iterator[list[Candidate]]:
    """Yield kinds of changes, within each the mildest first; `failed` grows between them."""
    lean: Mapping[str, Any] = {}
    if not options.passes and options.recompute != "cheap":
        lean = {"recompute": "cheap"}
    is_far = program.memory.peak.total_bytes > _FAR * program.memory.available_bytes
    batches = _multiples(program) if _has_batch(module) else []
    batch = [with_smaller_batch(options, lean, by) for by in batches]
    stages = [] if options.stages else [_staged(options, lean, n) for n in _multiples(program)[:1]]
    if is_far:
        yield batch
        yield stages
    if options.recompute == "none":
        yield [Candidate("flag", lean)]
    yield _offloaded(options, lean, program)
    given = options.available_memory_proportion
    smaller = [{"available_memory_proportion": p} for p in _PROPORTIONS if p < given]
    if not is_far:
        yield [Candidate("flag", {**settings, **lean}) for settings in smaller]
    if options.partials_type != "f16" and _has_half(program):
        half = {"partials_type": "f16"}
        yield [Candidate("flag", {**half, **more}) for more in ({}, *smaller[-1:])]
    if not is_far:
        yield stages
        yield batch
    if _has_single(program):
        both = [with_smaller_batch(options, lean, by, narrow=True) for by in batches[:1]]
        yield [narrowed(options, lean), *both]
    yield list(_larger_machines(options, program, failed))
    memory = program.memory
    if options.code_memory and memory.code_bytes > memory.executable_bytes:
        bare = {**lean, "code_memory": False}
        yield [
            Candidate("flag", bare),
            *(with_smaller_batch(options, bare, by) for by in batches[:1]),
        ]


def _staged(options: Options, settings: Mapping[str, Any], stages: int) -> Candidate:
    """Return a pipeline over several IPUs, which training steps can be cut into."""
    ipus = options.ipus * stages if options.ipus > 1 else options.ipus
    given = {"stages": stages, **({"ipus": ipus} if ipus > 1 else {}), **settings}
    return Candidate("flag", given, f"{flags(given)} ({max(ipus, stages)} IPUs)")


def _offloaded(
    options: Options, settings: Mapping[str, Any], program: CompiledProgram
) -> list[Candidate]:
    """Return more and more of a cut step in remote buffers, what is moved least first."""
    if not program.machine.remote.remote_bytes or not program.profile().pipelines:
        return []
    more: dict[str, bool] = {}
    found = []
    for name in ("offload_activations", "offload_accumulators", "offload_weights"):
        if not getattr(options, name):
            more[name] = True
            found.append(Candidate("flag", {**settings, **more}))
    return found


def _has_batch(module: Module) -> bool:
    """Whether there is a batch that can be made smaller."""
    front, plan = run_passes(module, None, "front", verify_each=False)
    return SmallerBatch().run(front, plan)[0] is not front


def _multiples(program: CompiledProgram) -> tuple[int, int]:
    """Return by how much less memory a part may need, so that it fits, and twice that."""
    least = 2
    while least * program.memory.available_bytes < program.memory.peak.total_bytes:
        least *= 2
    return least, 2 * least


def _has_half(program: CompiledProgram) -> bool:
    return any(v.element_type in _HALF for v in program.program.variables)


def _has_single(program: CompiledProgram) -> bool:
    return any(v.element_type == "f32" for v in program.program.variables)


def _larger_machines(
    options: Options, program: CompiledProgram, failed: list[Change]
) -> Iterator[Candidate]:
    """Yield machines with more memory on each tile, with the flags that came nearest."""
    flags_tried = [change for change in failed if change.kind == "flag"]
    nearest = min(flags_tried, key=lambda change: change.peak_bytes, default=None)
    peak = program.memory.peak.total_bytes
    settings: Mapping[str, Any] = {}
    if nearest is not None and nearest.peak_bytes < peak:
        peak, settings = nearest.peak_bytes, nearest.settings
    times = 2
    while times * program.memory.available_bytes < peak:
        times *= 2
    for more in (times, 2 * times):
        if more <= _MOST_LARGER:
            yield _larger(options, program, more, settings)


def _larger(
    options: Options, program: CompiledProgram, times: int, others: Mapping[str, Any]
) -> Candidate:
    """Return a machine like the one asked for, with more memory on each tile."""
    memory = program.machine.memory
    sizes = {
        "bytes_per_tile": memory.bytes_per_tile * times,
        "executable_bytes": memory.executable_bytes * times,
    }
    kept = tuple(item for item in options.set if item[0].rpartition(".")[2] not in sizes)
    settings = {**others, "set": (*kept, *((key, str(size)) for key, size in sizes.items()))}
    new = flags({**others, "set": tuple(sizes.items())})
    return Candidate("machine", settings, f"a machine with {times} times the memory, {new}")
