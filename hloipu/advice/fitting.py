"""Find changes that make a program fit: more IPUs, options or model edits, each compiled."""

from collections.abc import Iterator, Mapping
from typing import Any

from hloipu.advice.trials import (
    CUTTING,
    Candidate,
    Compile,
    Limit,
    Trials,
    flags,
    narrowed,
    with_smaller_batch,
)
from hloipu.options.table import Options
from hloipu.wrapping import wrapping_request
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.passes.smaller_batch import SmallerBatch
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import looped
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.report.change import Change, Fitting

WANTED = 2
"""Changes to find beside a number of IPUs, so that there is a choice."""
_PROPORTIONS = (0.3, 0.1)
_MOST_LARGER = 8
"""Times the memory of a tile, beyond which another machine is no advice."""
_TIMES_IPUS = 3
"""Numbers of IPUs to try, each twice the one before."""
_FAR = 2
"""Times the memory there is, beyond which options alone will not do."""


def what_fits(
    module: Module,
    options: Options,
    program: CompiledProgram,
    compile_as_asked: Compile,
    limit: Limit = Limit(),  # noqa: B008 - a constant
) -> Fitting:
    """Return changes with which a program fits: how many IPUs first, then what costs less.

    Of each kind the mildest. Compiles anew for each change that it tries, as often and as long as
    the limit allows: `compile_as_asked` does what the command line does with the same options.
    """
    trials = Trials(module, options, program, compile_as_asked, limit)
    fitting = _on_fewest_ipus(trials)
    wanted, failed = len(fitting) + WANTED, list[Change]()
    is_complete = True
    for family, is_last_resort in _families(module, options, program, failed):
        if len(fitting) >= wanted or (fitting and is_last_resort):
            continue
        for candidate in family:
            if not trials.has_time:
                is_complete = False
                break
            change = trials.outcome(candidate)
            if change is None:
                is_complete = is_complete and trials.has_time
                continue
            (fitting if change.fits else failed).append(change)
            if change.fits:
                break
        if not is_complete:
            break
    memory = program.memory
    tiles = program.machine.chip.tiles_per_ipu * program.program.ipus
    return Fitting(
        tuple(fitting),
        tuple(failed),
        memory.total_bytes,
        memory.available_bytes * tiles,
        is_complete,
        tuple(trials.spread),
    )


def _on_fewest_ipus(trials: Trials) -> list[Change]:
    """Return the change to the fewest IPUs with which it fits, if any of those that are tried does.

    The most are tried first: where these are not enough, fewer are not.
    """
    for *fewer, most in _more_ipus(trials.options, trials.program):
        if trials.has_time and (best := trials.outcome(most)) and best.fits:
            for candidate in fewer:
                change = trials.outcome(candidate) if trials.has_time else None
                if change and change.fits:
                    return [change]
            return [best]
    return []


def _families(
    module: Module, options: Options, program: CompiledProgram, failed: list[Change]
) -> Iterator[tuple[list[Candidate], bool]]:
    """Yield kinds of changes, and whether each is of use only where no other one is found.

    Within each the mildest comes first; `failed` grows between them.
    """
    lean: Mapping[str, Any] = {}
    if not options.passes and options.recompute != "cheap":
        lean = {"recompute": "cheap"}
    is_far = program.memory.peak.total_bytes > _FAR * program.memory.available_bytes
    batches = _multiples(program) if _has_batch(module) else []
    trains_or_not = (True, False) if _keeps_state(module, options) else (False,)
    batch = [
        with_smaller_batch(options, lean, by, trains=trains)
        for trains in trains_or_not
        for by in batches
    ]
    if is_far:
        yield batch, False
    if options.recompute == "none":
        yield [Candidate("flag", lean)], False
    yield _offloaded(options, lean, program), False
    proportion = options.available_memory_proportion
    smaller = [{"available_memory_proportion": p} for p in _PROPORTIONS if p < proportion]
    if not is_far:
        yield [Candidate("flag", {**settings, **lean}) for settings in smaller], False
    types = {variable.element_type for variable in program.program.variables}
    if options.partials_type != "f16" and "f16" in types:
        half = {"partials_type": "f16"}
        yield [Candidate("flag", {**half, **more}) for more in ({}, *smaller[-1:])], False
    if not is_far:
        yield batch, False
    if "f32" in types:
        both = [
            with_smaller_batch(options, lean, by, narrow=True, trains=trains)
            for trains in trains_or_not
            for by in batches[:1]
        ]
        yield [narrowed(options, lean), *both], False
    yield list(_larger_machines(options, program, failed)), True
    memory = program.memory
    if options.code_memory and memory.code_bytes > memory.executable_bytes:
        bare = {**lean, "code_memory": False}
        yield [Candidate("count", bare)], True


def _more_ipus(options: Options, program: CompiledProgram) -> list[list[Candidate]]:
    """Return numbers of IPUs, for each way to use them: those that have room for all bytes.

    A step that is cut as options say is cut into more stages or blocks; of another one the best
    cut is looked for, and its ops are spread.
    """
    is_chosen = options.plan == "none"
    if (options.device_map or options.cut_at) and not is_chosen:
        return []  # they say where every stage is
    memory, machine = program.memory, program.machine
    ipus = program.program.ipus
    room = memory.available_bytes * machine.chip.tiles_per_ipu * ipus
    least = 2
    while least * room < memory.total_bytes:
        least *= 2
    participants = program.program.participants
    most = machine.links.max_ipus // (ipus * participants)
    times = [n for n in (least << power for power in range(_TIMES_IPUS)) if n <= most]
    if not times:
        return []
    if is_chosen:
        return [[_chosen_anew(options, ipus * participants * n) for n in times]]
    if options.shards is not None or options.stages or options.replicas:
        name, now = ("shards", ipus) if options.shards is not None else ("stages", 1)
        now = options.stages or now
        return [[Candidate("ipus", {name: now * n, **_system(options, n)}) for n in times]]
    return [
        [Candidate("ipus", {"ipus": ipus * participants * n}) for n in times],
        [Candidate("ipus", {"shards": ipus * n}) for n in times[:1]],
    ]


def _chosen_anew(options: Options, ipus: int) -> Candidate:
    """Return the search for a cut over more IPUs, in place of the cut that was found."""
    usual = Options()
    fresh = {name: getattr(usual, name) for name in CUTTING if name != "micro_batches"}
    stated = {"plan": "auto", "ipus": ipus, "micro_batches": options.micro_batches}
    return Candidate("ipus", {**fresh, **stated}, flags(stated))


def _system(options: Options, times: int) -> Mapping[str, Any]:
    """Return the size of a system that grows with what is to run on it, where one is given."""
    return {"ipus": options.ipus * times} if options.ipus > 1 else {}


def _keeps_state(module: Module, options: Options) -> bool:
    """Whether a step has new values of state, so that it may train."""
    try:
        request = wrapping_request(options)
        return bool(required_wrapping(module, looped(request), feeds_rest=True).state)
    except HloipuError:  # it is not clear what is state
        return False


def _offloaded(
    options: Options, settings: Mapping[str, Any], program: CompiledProgram
) -> list[Candidate]:
    """Return more and more of a cut step in remote buffers, what is moved least first."""
    if not program.machine.remote.remote_bytes or not program.profile().pipelines:
        return []
    more: dict[str, bool] = {}
    candidates = []
    for name in ("offload_activations", "offload_accumulators", "offload_weights"):
        if not getattr(options, name):
            more[name] = True
            candidates.append(Candidate("flag", {**settings, **more}))
    return candidates


def _has_batch(module: Module) -> bool:
    front, plan = run_passes(module, None, "front", verify_each=False)
    return SmallerBatch().run(front, plan)[0] is not front


def _multiples(program: CompiledProgram) -> tuple[int, int]:
    """Return by how much less memory a part may need, so that it fits, and twice that."""
    least = 2
    while least * program.memory.available_bytes < program.memory.peak.total_bytes:
        least *= 2
    return least, 2 * least


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
    options: Options, program: CompiledProgram, times: int, other_settings: Mapping[str, Any]
) -> Candidate:
    """Return a machine like the one asked for, with more memory on each tile."""
    memory = program.machine.memory
    sizes = {
        "bytes_per_tile": memory.bytes_per_tile * times,
        "executable_bytes": memory.executable_bytes * times,
    }
    remaining = tuple(item for item in options.set if item[0].rpartition(".")[2] not in sizes)
    settings = {
        **other_settings,
        "set": (*remaining, *((key, str(size)) for key, size in sizes.items())),
    }
    new = flags({**other_settings, "set": tuple(sizes.items())})
    replaced = tuple(item for item in options.set if item not in remaining)
    in_place_of = f", in place of {flags({'set': replaced})}" if replaced else ""
    text = f"with {times} times the memory of each tile, {new}{in_place_of}"
    return Candidate("machine", settings, text)
