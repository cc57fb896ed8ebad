"""Options with which a program may fit that does not, the ones that cost least first."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hloipu.compile_request import pipeline_of, plugins
from hloipu.options.table import OPTIONS, Options
from hloipu.pipelining import gathers_again
from hloipu_compiler.analysis.code_size import inlined_code_bytes
from hloipu_compiler.analysis.live_bytes import peak_bytes
from hloipu_compiler.compilation import Clock, Compilation
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.runner import PassRun, run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.collection import without_collection
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.program.steps import Pipeline
from hloipu_runtime.program.uses import steps_within
from hloipu_runtime.watching import doing

if TYPE_CHECKING:
    from hloipu_compiler.planners.product_room import Rooms

_ROOM_TRIES = 4
"""Times that products are planned again by what was live beside them."""

_LESS_PERCENT = (75, 50, 25)
"""Of the memory that plans of products may take, tried where a program does not fit. A quarter of
the default is 0.15; configurations of BERT, GPT-2 and ResNet-50 set 0.1 to 0.3 (graphcore/examples:
nlp/bert/pytorch/configs_pretraining.yml, vision/cnns/tensorflow2/configs.yml)."""

_LACKING_PERCENT = 25
"""Of a tile's memory: what lacks more is not tried with smaller shares. Assumed: the products alive
at the fullest moment seldom take more than that off it."""

_MANY_VARIABLES = 5_000
"""A program with more takes a second and more for each try: it has no second one where the first
spares nothing. Assumed."""

_ROOM_LACKING_PERCENT = 50
"""The same of smaller products at full moments, whose first try says whether more are worth it."""


_CODE_AS_GUESSED = 0.4
"""Of the code that is guessed from the text, what programs have at least. Assumed: stages of BERT
and ResNet-50 have 0.45 to 1.1 of it, and beside code 1.3 to 5 times the live bytes of the text."""


class WithRooms(NamedTuple):
    """What came of planning products with what is left for them."""

    best: CompiledProgram
    """One that fits; else the best of those that do not."""
    least: CompiledProgram
    """The one that lacks least, ..."""
    rooms: "Rooms"
    """... and what its products could take."""
    may_spare: bool = True
    """Whether smaller ones may spare more than the code of their pieces takes."""


def surely_lacks_memory(begun: Compilation) -> bool:
    """Whether a program with each block of its own will not fit, by guesses from its text."""
    machine, module, cut = begun.request.machine, begun.module, begun.pipelining
    if begun.plan.ipus or not begun.request.tuning.code_memory:
        return False
    called: dict[int, set[str]] = {}
    for part in cut.parts if cut is not None else ():
        (name,) = module.entry[part.call].attributes.called
        called.setdefault(part.ipu, set()).add(name)
    names = [c.name for c in module.computations]
    for of_ipu in called.values() or ({module.entry.name},):
        parts = [replace(module, entry_position=names.index(name)) for name in of_ipu]
        code_bytes = sum(map(inlined_code_bytes, parts))
        live_bytes = max(map(peak_bytes, parts)) / machine.chip.tiles_per_ipu
        least = _CODE_AS_GUESSED * code_bytes + live_bytes
        if least > machine.memory.bytes_per_tile:
            return True
    return False


def leaner_options(
    module: Module, options: Options, program: CompiledProgram, phase: Clock
) -> Iterator[Options]:
    """Yield options with which what does not fit might, the ones that cost least first."""
    is_divided = program.program.partitioning is not None
    if options.gather_weights == "auto" and gathers_again(
        module, options.micro_batches, is_divided=is_divided
    ):
        options = replace(options, gather_weights="micro-batch")
        yield options
    if options.recompute == "auto" and not options.passes:
        with phase("memory"):
            kinds = _kinds_made_again(module, options, program)
        yield from (replace(options, recompute=kind) for kind in kinds)
    if options.shards == "auto":
        most = options.ipus if options.ipus > 1 else program.machine.links.max_ipus
        for shards in (2 * program.program.ipus, 4 * program.program.ipus):
            if shards <= most:
                yield replace(options, shards=shards)


def with_smaller_shares(
    options: Options,
    best: CompiledProgram,
    phase: Clock,
    compile_with: Callable[[Options], CompiledProgram],
) -> tuple[CompiledProgram, Options] | None:
    """Return a program that fits or lacks less as all its products may take less; None: none does.

    `best`: the one that lacks least so far. Shares get smaller as long as less lacks: at last
    products are done in crumbs, whose code takes more than they spare.
    """
    with phase("memory"):
        lacking = lacking_bytes(best)
    if lacking > _LACKING_PERCENT * _budget_bytes(best) // 100:
        return None
    least = None
    for percent in _LESS_PERCENT:
        share = options.available_memory_proportion * percent / 100
        smaller = replace(options, available_memory_proportion=share)
        with doing("; ".join(changes(options, smaller))):
            tried = compile_with(smaller)
            with phase("memory"):
                before, lacking = lacking, lacking_bytes(tried)
        if tried.fits or lacking < before:
            least = tried, smaller
        if tried.fits or lacking > before:
            break
    return least


def may_weigh_code(program: CompiledProgram) -> bool:
    """Whether a program may fit if code of its stages and functions has its price.

    So long as a program fits, what code would cost is not worth the cycles.
    """
    if not program.program.functions and not _is_cut(program):
        return False
    code = max(int(ipu.code_bytes.max()) for ipu in program.memory_plan.ipus)
    most = code * program.machine.chip.tiles_per_ipu
    return program.code_memory and lacking_bytes(program) <= most


def with_smaller_products(
    begin: WithRooms, phase: Clock, compile_with: "Callable[[Rooms], CompiledProgram]"
) -> WithRooms:
    """Return a program whose products at full moments take less, where `begin.least` lacks bytes.

    One that does not fit either is the best if it lacks less, and takes less of memory times time.
    """
    from hloipu_compiler.planners.product_room import product_rooms

    best, least, least_rooms, may_spare = begin
    best = _better(best, least)
    if not may_spare:
        return begin._replace(best=best)
    program, rooms, most_spared = least, least_rooms, 0
    for left in reversed(range(_ROOM_TRIES)):
        before = lacking_bytes(program)
        if before > _ROOM_LACKING_PERCENT * _budget_bytes(program) // 100:
            break
        with phase("memory"):
            known, rooms = rooms, product_rooms(program.memory_plan, rooms)
        if rooms == known:
            break
        program = compile_with(rooms)
        with phase("memory"):
            if program.fits:
                return WithRooms(program, program, rooms)
            lacking = lacking_bytes(program)
        if lacking < lacking_bytes(least):
            least, least_rooms = program, rooms
            best = _better(best, program)
        most_spared = max(most_spared, before - lacking)
        if left == _ROOM_TRIES - 1:
            is_large = len(program.program.variables) > _MANY_VARIABLES
            if is_large and _lacking_in_all(program) >= _lacking_in_all(begin.least):
                may_spare = False
                break
        elif most_spared * left < lacking:
            break  # as much each time would not be enough
    return WithRooms(best, least, least_rooms, may_spare)


def _better(best: CompiledProgram, other: CompiledProgram) -> CompiledProgram:
    """Return the other program if it fits, or lacks less and takes less of memory times time."""
    if other.fits:
        return other
    if lacking_bytes(other) >= lacking_bytes(best):
        return best
    needs, takes = zip(
        *((_needed_bytes(x), x.estimate().lower_bound_cycles) for x in (best, other)), strict=True
    )
    return other if needs[1] * takes[1] < needs[0] * takes[0] else best


def _needed_bytes(program: CompiledProgram) -> int:
    """Return what all tiles of an IPU would need, were each as full as the fullest."""
    return _budget_bytes(program) + lacking_bytes(program)


def _budget_bytes(program: CompiledProgram) -> int:
    return program.machine.memory.bytes_per_tile * program.machine.chip.tiles_per_ipu


def may_make_again(program: CompiledProgram) -> bool:
    """Whether stages that make values again in place of keeping them may spare what lacks."""
    return _is_cut(program) and _may_spare(program)


def _kinds_made_again(
    module: Module, options: Options, program: CompiledProgram
) -> tuple[str, ...]:
    """Return which values may be made again so that what does not fit may."""
    if not _may_spare(program):
        return ()
    if _has_backward_stages(program):
        # Cheap ones were tried and lacked more, or what lacked least was gone on with.
        return ("full", "blocks", "cheap")
    return ("cheap",) if _makes_cheap_again(module, options) else ()


def _may_spare(program: CompiledProgram) -> bool:
    """Whether no more lacks than temporaries and copies of these take: no others are made again."""
    parts = program.memory.peak.parts
    kinds = Category.TEMPORARIES, Category.EXCHANGE_BUFFERS
    temporary_bytes = sum(parts.get(kind, 0) for kind in kinds)
    return lacking_bytes(program) <= temporary_bytes * program.machine.chip.tiles_per_ipu


def _is_cut(program: CompiledProgram) -> bool:
    return any(True for _ in _pipelines(program))


def _has_backward_stages(program: CompiledProgram) -> bool:
    """Whether anything waits for gradients: forward stages alone have nothing to make again."""
    return any(not stage.name.startswith("F") for x in _pipelines(program) for stage in x.stages)


def _pipelines(program: CompiledProgram) -> Iterator[Pipeline]:
    steps = steps_within(program.program.body, program.program)
    return (x for x in steps if isinstance(x, Pipeline))


def lacking_bytes(program: CompiledProgram) -> int:
    """Return what the fullest tile lacks, of all its memory or for code, times an IPU's tiles."""
    return max(lacking_by_ipu(program))


def lacking_by_ipu(program: CompiledProgram) -> list[int]:
    """Return the same of each IPU; negative where it has room."""
    plan, machine = program.memory_plan, program.machine
    return [
        machine.chip.tiles_per_ipu
        * max(
            int(ipu.needed_bytes.max()) - plan.available_bytes,
            int(ipu.code_bytes.max()) - machine.memory.executable_bytes,
        )
        for ipu in plan.ipus
    ]


def _lacking_in_all(program: CompiledProgram) -> int:
    """Return what all IPUs lack together: each may be cured on its own."""
    return sum(max(0, lacking) for lacking in lacking_by_ipu(program))


def _makes_cheap_again(module: Module, options: Options) -> bool:
    """Whether a module has cheap values that would be made again."""
    runs: list[PassRun] = []
    options = replace(options, recompute="cheap")
    with plugins(options), without_collection():
        from hloipu_compiler.passes.fusion.recompute_cheap import RecomputeCheap

        run_passes(
            module,
            Plan(),
            pipeline_of(options),
            verify_each=False,
            stop_after=RecomputeCheap.name,
            watch=runs.append,
        )
    return runs[-1].after is not runs[-1].before


def changes(options: Options, other: Options) -> list[str]:
    """Return what is tried with other options, a flag each."""
    return [
        f"trying {row.flag} {row.kind.write(getattr(other, name))}"
        for name, row in OPTIONS.items()
        if getattr(other, name) != getattr(options, name)
    ]
