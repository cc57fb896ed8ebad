"""Compiling from Python: text in, a program to run out; options are the command line's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from hloipu.compile_request import compile_request, machine_of, pipeline_of
from hloipu.definitions import key_text, without_definitions
from hloipu.encoded import plain_step
from hloipu.options.resolve import resolve
from hloipu.options.table import OPTIONS, Options
from hloipu.pipelining import check_ipus, cut_lines, stashed_bytes
from hloipu.places import in_system
from hloipu.text import HloInput, read_source
from hloipu_compiler.analysis.code_size import LEAST_OUTLINED_BYTES, inlined_code_bytes
from hloipu_compiler.analysis.live_bytes import peak_bytes
from hloipu_compiler.analysis.source_lines import source_lines
from hloipu_compiler.compilation import Clock, CompileRequest, unmeasured
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.framework.registry import added_passes_forgotten
from hloipu_compiler.passes.runner import PassRun, run_passes
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import kept_between_runs
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.arguments import checked
from hloipu_runtime.collection import without_collection
from hloipu_runtime.compiled import CompiledProgram, compiled_program
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.plain_text import printable
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Pipeline
from hloipu_runtime.program.uses import steps_within
from hloipu_runtime.report.change import Fitting

if TYPE_CHECKING:
    from hloipu.choosing import Choice
    from hloipu.options.keywords import CompileOptions
    from hloipu_compiler.planners.product_room import Rooms
    from hloipu_runtime.executable import OverMemory

_COMPILERS = ("hloipu_compiler", "hloipu_runtime")
"""Packages whose sources decide what is compiled."""

_MOST_TIMES = 4
"""As many times the bytes that are spared on average may be spared on the fullest tile. Assumed."""

_USUAL_SHARE = Options().available_memory_proportion

_ROOM_TRIES = 3
"""Times that products are planned again by what was live beside them, while less and less lacks."""

_LESS_PERCENT = (75, 50)
"""Of the memory that plans of products may take, tried where a program does not fit."""

_LACKING_PERCENT = 25
"""Of a tile's memory: what lacks more is not tried with smaller plans. Assumed: the products alive
at the fullest moment seldom take more than that off it."""

_NOT_OF_COMPILING = frozenset(
    "target set mode over_memory assume_trips plugin cache cache_dir cache_size_bytes poison "
    "seed max_iterations".split()
)
"""Options under which the same is compiled; the machine's own numbers stand for two of them."""


@checked
def compile(given: HloInput, **options: "Unpack[CompileOptions]") -> CompiledProgram:
    """Compile HLO text (a path, an open file, or the text itself) for one IPU.

    Options are those of `hloipu compile`, as keywords: `target="gc200"`, `set={…}`,
    `over_memory="allow"` and so on. A program that does not fit is returned all the same; see
    `fits`. Raises what `verify` raises, UsageError for options, UnsupportedError for what the
    machine or this version cannot run.
    """
    source = read_source(given)
    module = parse(source)
    verify(module)
    step, _ = plain_step(module, options)
    plain = without_definitions(options)
    found = resolve("compile", plain, attributes=module_attributes(step)).options
    text = key_text(step, source.text, options)
    asked = settled_options(step, text, found)
    return compile_cached(step, text, asked.options, ready=asked.program)


class Settled(NamedTuple):
    """Options without `plan="auto"`, and the choice that stands in its place."""

    options: Options
    choice: "Choice | None" = None

    @property
    def program(self) -> CompiledProgram | None:
        """The program of the module under these options, if the choice has compiled it."""
        return self.choice.program if self.choice is not None else None


def settled_options(
    module: Module,
    text: str | None,
    options: Options,
    told: Callable[[str], None] = lambda _: None,
) -> Settled:
    """Return options with the best way to cut a step in place of `plan="auto"`.

    `text` is that of the module, for the cache; None: nothing is to be kept. `told` hears how far
    a search is.
    """
    if not has_to_choose(module, options):
        return Settled(options)
    with without_collection():
        from hloipu.choosing import chosen

        try:
            choice = chosen(module, options, lambda tried: _trial(module, text, tried), told)
        except HloipuError:
            # Nobody asked for a cut: what is no step runs as it is, on as many IPUs as it takes.
            if options.plan == "auto":
                raise
            return Settled(options)
    return Settled(choice.options(options), choice)


_SAYING_HOW = "stages shards replicas device_map ipu_ids".split()
"""Options that say how IPUs are used."""


def has_to_choose(module: Module, options: Options) -> bool:
    """Whether a way to cut a step is to be looked for: with `plan="auto"`, or with `ipus` alone."""
    if options.plan is not None or options.ipus == 1:
        return options.plan == "auto"
    if any(getattr(options, name) is not None for name in _SAYING_HOW):
        return False
    from hloipu_compiler.on_demand import marked_stages, says_anything
    from hloipu_compiler.plan.participants import participants_for

    replicas, partitions = participants_for(module, None)
    is_marked = says_anything(module, partitions) or bool(marked_stages(module.entry))
    return replicas * partitions == 1 and not is_marked


def settled(given: HloInput, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `compile` with the best way to cut a step in place of `plan="auto"`."""
    source = read_source(given)
    module = parse(source)
    verify(module)
    module, _ = plain_step(module, options)
    plain = without_definitions(options)
    found = resolve("compile", plain, attributes=module_attributes(module)).options
    text = key_text(module, source.text, options)
    chosen_one, choice = settled_options(module, text, found)
    if choice is None:
        return dict(options)
    names = ("plan", "ipus", *choice.best.candidate.options())
    return {**options, **{name: getattr(chosen_one, name) for name in names}}


def _trial(module: Module, text: str | None, options: Options) -> CompiledProgram:
    """Compile as options say, and nothing else where that does not fit."""
    if text is not None and options.cache and not options.plugin:
        return compile_cached(module, text, options, leaner=False)
    return compile_once(module, options)


def module_attributes(module: Module) -> Mapping[str, str]:
    """Return what a module states of itself, options among it."""
    return read_frontend_attributes(str(module.attributes.get("frontend_attributes", "")))


def compile_cached(
    module: Module,
    text: str,
    options: Options,
    phase: Clock = unmeasured,
    *,
    leaner: bool = True,
    ready: CompiledProgram | None = None,
) -> CompiledProgram:
    """Compile a verified module, or take what was compiled of this text and these options before.

    What a plugin compiles is not kept: its code may depend on anything. Without `leaner` what does
    not fit is left at that, and not kept. `ready`: the program, where a search has made it.
    """
    if ready is not None:
        return ready
    if not options.cache or options.plugin:
        return compile_verified(module, options, phase)
    with phase("cache"):
        from hloipu_runtime.executable_cache import ExecutableCache, compile_key, source_fingerprint

        key = compile_key(
            text.encode("utf-8", errors="surrogateescape"),
            key_options(options),
            machine_of(options),
            source_fingerprint(*_COMPILERS),
        )
        cache = ExecutableCache(options.cache_dir, options.cache_size_bytes)
        found = cache.get(key)
    if found is not None:
        return as_asked(compiled_program(found), options, _Advisor(module, options))
    if leaner:
        made = compile_verified(module, options, phase, fingerprint=key)
    else:
        made = compile_once(module, options, phase, fingerprint=key)
    with phase("memory"):
        if not leaner and not made.fits:
            return made
        made.memory  # noqa: B018 - a part of the file
    with phase("cache"):
        cache.put(key, made.executable())
    return made


def key_options(options: Options) -> dict[str, Any]:
    """Return the options that decide what is compiled, but for those that make the machine."""
    return {name: getattr(options, name) for name in OPTIONS if name not in _NOT_OF_COMPILING}


def as_asked(
    program: CompiledProgram, options: Options, advisor: "_Advisor | None" = None
) -> CompiledProgram:
    """Return a program that was compiled before, with what options say besides how to compile."""
    shown = {"code_memory": options.code_memory, "over_memory": options.over_memory}
    return replace(
        program,
        code_memory=options.code_memory,
        over_memory=_over_memory(options),
        assume_trips=options.assume_trips,
        options={**program.options, **shown},
        advisor=advisor,
    )


def compile_verified(
    module: Module, options: Options, phase: Clock = unmeasured, *, fingerprint: str = ""
) -> CompiledProgram:
    """Compile a verified module as options say; `phase` encloses each part of the work.

    What does not fit is compiled again: with equal blocks as functions, if it has any, with
    `recompute="auto"` with cheap values made again, in pipelines with all of them, or block by
    block, with `shards="auto"` on more IPUs, then with plans of products that take less memory.
    What fits first is returned.
    """
    with without_collection():
        made = compile_once(module, options, phase, fingerprint=fingerprint)
        if options.outline == "auto" and not options.passes:
            made, options = _outlined_if_less(module, options, made, phase)
        made = _with_smaller_products(module, options, made, phase)
        for leaner in _leaner(module, options, made, phase):
            tried = compile_once(module, leaner, phase, fingerprint=fingerprint)
            with phase("memory"):
                if tried.fits:
                    return tried
        return made


def _with_smaller_products(
    module: Module, options: Options, made: CompiledProgram, phase: Clock
) -> CompiledProgram:
    """Return a program whose products at full moments take less, where the one without lacks bytes.

    One that does not fit either has to lack less and to be no slower.
    """
    best = made
    rooms: Rooms = {}
    tiles, most = made.machine.chip.tiles_per_ipu, made.machine.memory.bytes_per_tile
    for _ in range(_ROOM_TRIES):
        with phase("memory"):
            if made.fits or 100 * _lacking_bytes(made) > _LACKING_PERCENT * most * tiles:
                break
            from hloipu_compiler.planners.product_room import product_rooms

            known, rooms = rooms, product_rooms(made.memory_plan, rooms)
        if rooms == known:
            break
        before, fingerprint = _lacking_bytes(made), made.fingerprint
        made = compile_once(module, options, phase, fingerprint=fingerprint, rooms=rooms)
        with phase("memory"):
            if made.fits:
                return made
            if _lacking_bytes(made) >= before:
                break
            cycles, least = (x.estimate().total_cycles or 0 for x in (made, best))
            if _lacking_bytes(made) < _lacking_bytes(best) and cycles <= least:
                best = made
    return best


def _outlined_if_less(
    module: Module, options: Options, made: CompiledProgram, phase: Clock
) -> tuple[CompiledProgram, Options]:
    """Return a program with equal blocks as functions, where the one without does not fit.

    It has to have functions and to take less memory, else the program and its options stay.
    """
    with phase("memory"):
        if made.fits:
            return made, options
        lacking = _lacking_bytes(made)
    if inlined_code_bytes(module) < LEAST_OUTLINED_BYTES:
        return made, options
    asked = replace(options, outline="on")
    tried = compile_once(module, asked, phase, fingerprint=made.fingerprint)
    if not tried.program.functions:
        return made, options
    with phase("memory"):
        return (tried, asked) if _lacking_bytes(tried) < lacking else (made, options)


def compile_settled(module: Module, options: Options) -> CompiledProgram:
    """Compile a verified module without the cache, the best way to cut it looked for if asked."""
    settled = settled_options(module, None, options)
    return settled.program or compile_verified(module, settled.options)


def _leaner(
    module: Module, options: Options, made: CompiledProgram, phase: Clock
) -> Iterator[Options]:
    """Yield options with which what does not fit might, the ones that cost least first."""
    with phase("memory"):
        if made.fits:
            return
        has_room = made.memory_plan.has_room_for_code
        lacking = _lacking_bytes(made)
    if options.recompute == "auto" and not options.passes and has_room:
        # Values made again take code as well.
        cheap = replace(options, recompute="cheap")
        if stashed := stashed_bytes(made.program):
            if lacking <= _MOST_TIMES * stashed:
                yield cheap
                yield replace(options, recompute="full")
        else:
            with phase("passes"):
                may_fit = lacking <= _MOST_TIMES * _spared_bytes(module, cheap)
            if may_fit:
                yield cheap
        # What is made again are temporaries, so it cannot spare more than these.
        temporaries = made.memory.peak.parts.get(Category.TEMPORARIES, 0)
        is_cut = any(isinstance(x, Pipeline) for x in steps_within(made.program.body, made.program))
        if is_cut and lacking <= temporaries * made.machine.chip.tiles_per_ipu:
            yield replace(options, recompute="blocks")
    if options.shards == "auto":
        most = options.ipus if options.ipus > 1 else made.machine.links.max_ipus
        for shards in (2 * made.program.ipus, 4 * made.program.ipus):
            if shards <= most:
                yield replace(options, shards=shards)
    budget_bytes = made.machine.memory.bytes_per_tile * made.machine.chip.tiles_per_ipu
    if 100 * lacking <= _LACKING_PERCENT * budget_bytes:
        for percent in _LESS_PERCENT:
            share = options.available_memory_proportion * percent / 100
            yield replace(options, available_memory_proportion=share)


def _lacking_bytes(program: CompiledProgram) -> int:
    """Return what the fullest tile lacks, of all its memory or for code, times an IPU's tiles."""
    plan, machine = program.memory_plan, program.machine
    needed = max(int(ipu.needed_bytes.max()) for ipu in plan.ipus)
    code = max(int(ipu.code_bytes.max()) for ipu in plan.ipus)
    lacking = max(needed - plan.available_bytes, code - machine.memory.executable_bytes)
    return lacking * machine.chip.tiles_per_ipu


def _spared_bytes(module: Module, options: Options) -> int:
    """Return by how much fewer bytes are live at once if cheap values are made again."""
    found: list[PassRun] = []
    with plugins(options), without_collection():
        from hloipu_compiler.passes.fusion.recompute_cheap import RecomputeCheap

        run_passes(
            module,
            Plan(),
            pipeline_of(options),
            verify_each=False,
            stop_after=RecomputeCheap.name,
            watch=found.append,
        )
    before, after = found[-1].before, found[-1].after
    return peak_bytes(before) - peak_bytes(after) if after is not before else 0


def compile_once(
    module: Module,
    options: Options,
    phase: Clock = unmeasured,
    *,
    fingerprint: str = "",
    rooms: "Rooms | None" = None,
) -> CompiledProgram:
    """Compile a verified module as options say; `recompute="auto"` is like `none`.

    `rooms`: what products may take, from a program of the module that did not fit.
    """
    request = replace(compile_request(options), product_rooms=rooms or {})
    with plugins(options), without_collection():
        made = compile_module(module, request, clock=phase)
    machine = made.request.machine
    program = in_system(made, machine, options)
    check_ipus(program, machine, options)
    with phase("proof"):
        return CompiledProgram(
            program,
            machine,
            code_memory=options.code_memory,
            over_memory=_over_memory(options),
            sources=source_lines(module),
            parameter_names=_parameter_names(module),
            options={
                **shown_options(options),
                **cut_lines(module, made, options),
                **({"hoisting": dict(made.hoisting)} if made.hoisting else {}),
                **_kept_between_runs(module, made.request, program),
            },
            assume_trips=options.assume_trips,
            fingerprint=fingerprint,
            advisor=_Advisor(module, options),
            known_memory=made.memory,
        )


def _kept_between_runs(
    module: Module, request: CompileRequest, program: Program
) -> dict[str, Mapping[str, Any]]:
    """Return which ports of a plain program carry what would stay on the device between runs."""
    if program.is_resident or program.stacks:
        return {}
    found = kept_between_runs(module, request.wrapping)
    return {"kept_between_runs": found} if found else {}


def _parameter_names(module: Module) -> tuple[str, ...]:
    """Return the name of each array that the entry takes, as its user has it."""
    return tuple(printable(array.name) for array in parameter_arrays(module))


@dataclass(frozen=True)
class _Advisor:
    """Finds what makes a program fit, by compiling its module with one change after the other."""

    module: Module
    options: Options

    def __call__(self, program: CompiledProgram) -> Fitting:
        """Return what makes it fit, after ten times as long as compiling takes at most."""
        from hloipu.advice.fitting import what_fits  # few programs need it

        return what_fits(self.module, self.options, program, compile_once)


def planned(module: Module, options: Options) -> Sequence[Record]:
    """Return what planners chose for a verified module, compiled as options say."""
    with plugins(options):
        return compile_module(module, replace(compile_request(options), keeps_plans=True)).plans


def passed(module: Module, options: Options) -> Module:
    """Return a verified module after the passes that compiling begins with."""
    with plugins(options):
        return run_passes(module, Plan(), pipeline_of(options), verify_each=False)[0]


@contextmanager
def plugins(options: Options) -> Iterator[None]:
    """Have the passes of a user's own files within the block."""
    with added_passes_forgotten() if options.plugin else nullcontext():
        from hloipu_compiler.passes.framework.plugins import load_plugin

        for plugin in options.plugin:
            load_plugin(plugin)
        yield


def _over_memory(options: Options) -> "OverMemory":
    return "allow" if options.over_memory == "allow" else "refuse"


def shown_options(options: Options) -> Mapping[str, Any]:
    """Return the options that shape a program, as reports show them."""
    shown = {
        "target": options.target,
        "code_memory": options.code_memory,
        "over_memory": options.over_memory,
        "recompute": "none" if options.recompute == "auto" else options.recompute,
        "passes": pipeline_of(options),
    }
    if options.opaque:
        shown["opaque"] = dict(options.opaque)
    share = options.available_memory_proportion
    return shown if share == _USUAL_SHARE else {**shown, "available_memory_proportion": share}
