"""Compile from Python: text in, a program to run out; options are the command line's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from hloipu.compile_request import compile_request, machine_of, pipeline_of, plugins, shown_options
from hloipu.definitions import key_text, without_definitions
from hloipu.encoded import plain_step
from hloipu.options.resolve import options_of_call
from hloipu.options.table import OPTIONS, Options
from hloipu.pipelining import check_ipus, cut_lines
from hloipu.places import in_system, taken_ipus, taken_lines, with_hosts
from hloipu.showing import shown
from hloipu.text import HloInput, read_source
from hloipu_compiler.analysis.code_size import inlined_code_bytes
from hloipu_compiler.analysis.source_lines import source_lines
from hloipu_compiler.compilation import Clock, Compilation, CompileRequest, Phase, unmeasured
from hloipu_compiler.distributing import participants
from hloipu_compiler.driver import compile_module, continued
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.on_demand import is_divided
from hloipu_compiler.passes.runner import pass_rows
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.plan.roles import kept_between_runs
from hloipu_compiler.planners.planned import Record
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.arguments import checked
from hloipu_runtime.cache_folder import default_folder
from hloipu_runtime.collection import without_collection
from hloipu_runtime.compiled import CompiledProgram, compiled_program
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.plain_text import printable
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify as prove
from hloipu_runtime.report.change import Fitting
from hloipu_runtime.watching import Search, current_search, doing, searching

if TYPE_CHECKING:
    from hloipu.choice_trials import Choice
    from hloipu.options.keywords import CompileOptions
    from hloipu_runtime.executable import OverMemory

_COMPILERS = ("hloipu_compiler", "hloipu_runtime")
"""Packages whose sources decide what is compiled."""

_UNNOTICED_SECONDS = 2.0
"""That advice may take however soon compiling was done. Assumed: nobody minds."""

_NOT_OF_COMPILING = frozenset(
    "target set mode over_memory assume_trips plugin cache cache_dir cache_size_bytes poison "
    "seed max_iterations synthetic_data time_limit fast".split()
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
    with shown(), searching(Search()), without_collection():
        step, text, asked = _read(given, options)
        settled = settled_options(step, text, asked)
        return compile_cached(settled.module, text, settled.options, ready=settled.program)


def _read(given: HloInput, options: Mapping[str, Any]) -> tuple[Module, str, Options]:
    """Return a verified step, its text for the cache, and the options that keywords stand for."""
    with doing("parsing"):
        source = read_source(given)
        module = parse(source)
    with doing("verifying"):
        verify(module)
    step, _ = plain_step(module, options)
    asked = options_of_call(without_definitions(options), module_attributes(step))
    return step, key_text(step, source.text, options), asked


class Settled(NamedTuple):
    """A module and options without `plan="auto"`, and the choice that stands in its place."""

    module: Module
    """Annotated, where the choice divides its arrays."""
    options: Options
    choice: "Choice | None" = None

    @property
    def program(self) -> CompiledProgram | None:
        """The program of the module under these options, if the choice has compiled it."""
        return self.choice.program if self.choice is not None else None


def settled_options(module: Module, text: str | None, options: Options) -> Settled:
    """Return options with the best way to cut a step in place of `plan="auto"`.

    `text` is that of the module, for the cache; None: nothing is to be kept. Looking for it ends
    after `time_limit` seconds, or as the current search says.
    """
    if not has_to_choose(module, options):
        return Settled(module, options)
    with without_collection(), _searching(options), doing("looking for a cut"):
        from hloipu.choosing import chosen

        try:
            choice = chosen(module, options, lambda *tried: _trial(tried[0], text, tried[1]))
        except HloipuError:
            # Nobody asked for a cut: what is no step runs as it is, on as many IPUs as it takes.
            if options.plan == "auto":
                raise
            return Settled(module, options)
    return Settled(choice.divided(), choice.options(options), choice)


@contextmanager
def _searching(options: Options) -> Iterator[Search]:
    """Use the search in progress, or a new one bounded by the options."""
    search = current_search()
    search.limit(options.time_limit)
    with searching(search):
        yield search


_SAYING_HOW = "stages cut_at shards replicas device_map ipu_ids".split()
"""Options that say how IPUs are used."""


def has_to_choose(module: Module, options: Options) -> bool:
    """Whether a way to cut a step is to be looked for: with `plan="auto"`, or with `ipus` alone.

    Of a module whose arrays are divided, `ipus` are more than it has partitions.
    """
    if options.plan is not None or options.ipus == 1:
        return options.plan == "auto"
    if any(getattr(options, name) is not None for name in _SAYING_HOW):
        return False
    from hloipu_compiler.on_demand import marked_stages, says_anything
    from hloipu_compiler.plan.participants import participants_for

    if options.partition == "auto" and is_divided(module):
        return options.ipus > participants(module, compile_request(options))[1]
    replicas, partitions = participants_for(module, None)
    is_marked = says_anything(module, partitions) or bool(marked_stages(module.entry))
    return replicas * partitions == 1 and not is_marked


def settled(given: HloInput, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `compile` with the best way to cut a step in place of `plan="auto"`."""
    _, settled, choice = settled_options(*_read(given, options))
    if choice is None:
        return dict(options)
    names = ("plan", "ipus", *choice.best.candidate.options())
    return {**options, **{name: getattr(settled, name) for name in names}}


def _trial(module: Module, text: str | None, options: Options) -> CompiledProgram:
    """Compile as options say; what does not fit is compiled again if the module is long.

    Of others the next best cut is likely to cost less than what makes the best one fit.
    """
    from hloipu.sharding import is_long

    leaner = is_long(module)
    if text is not None and options.cache and not options.plugin:
        return compile_cached(module, text, options, leaner=leaner)
    return (compile_verified if leaner else compile_once)(module, options)


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
    search = current_search()
    if ready is not None:
        return _ended(ready, search)
    folder = (options.cache_dir or default_folder()) if options.cache else None
    if folder is None or options.plugin:
        return compile_verified(module, options, phase)
    with phase("cache"):
        from hloipu_runtime.executable_cache import ExecutableCache, compile_key, source_fingerprint

        key = compile_key(
            text.encode("utf-8", errors="surrogateescape"),
            key_options(options),
            machine_of(options),
            source_fingerprint(*_COMPILERS),
        )
        cache = ExecutableCache(folder, options.cache_size_bytes)
        stored = cache.get(key)
    if stored is not None:
        return as_asked(compiled_program(stored), options, _Advisor(module, options))
    run = compile_verified if leaner else compile_once
    program = run(module, options, phase, fingerprint=key)
    with phase("memory"):
        if not program.fits and (search.ended or not leaner):
            return program
        program.memory  # noqa: B018 - a part of the file
    with phase("cache"):
        cache.put(key, program.executable())
    return program


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

    What does not fit is compiled again, within `time_limit`: with equal blocks as functions, if it
    has any (at once, where it is sure not to fit without), with smaller products at full moments,
    with `recompute="auto"` with cheap values of stages made again, with code of stages and
    functions weighed, then as if each kind of making values again had been asked for, with
    `shards="auto"` on more IPUs, then with plans of products that take less memory. What fits first
    is returned, or what fits with less code of exchanges, if that is faster.
    """
    with without_collection(), _searching(options) as search:
        start = perf_counter()
        begun = _begun(module, options, phase)
        if _has_to_outline(begun, options):
            options = replace(options, outline="on")
            begun = replace(begun, request=replace(begun.request, outlines=True))
        begun = replace(begun, request=replace(begun.request, is_draft=True))
        with plugins(options):
            passed = continued(begun, Phase.PASSES, phase).for_many_programs()
            lowered = continued(passed, Phase.LOWERED, phase)
            finished = continued(lowered, clock=phase)
        program = _programmed(module, fingerprint, finished, options)
        with phase("memory"):
            fits = program.fits
        if not fits:
            from hloipu.fitting.attempts import Attempts, fitting  # most programs fit

            attempts = Attempts(module, phase, partial(_programmed, module, fingerprint))
            attempts.begin(options, begun, passed)
            attempts.draft(program, options, lowered, finished)
            with search.improving():
                program = fitting(attempts, options, program, search)
        with phase("memory"):
            program = program.with_chosen_forms()
        with phase("proof"):
            prove(program.program, program.machine.chip.tiles_per_ipu)
        if isinstance(program.advisor, _Advisor):
            program.advisor.seconds = perf_counter() - start
        return _ended(program, search)


def _ended(program: CompiledProgram, search: Search) -> CompiledProgram:
    """Return a program that says why nothing better was looked for, if that is so."""
    note = {"search": f"ended early ({search.ended}): this is the best so far"}
    if not search.ended:
        return program
    return replace(program, options={**program.options, **note}, is_proved=True)


def _has_to_outline(begun: Compilation, options: Options) -> bool:
    """Whether a program without equal blocks as functions is not worth making: it will not fit."""
    if options.outline != "auto" or options.passes:
        return False
    if inlined_code_bytes(begun.module) < begun.request.machine.memory.bytes_per_tile:
        return False
    from hloipu.fitting.leaner import surely_lacks_memory  # most programs are small

    return surely_lacks_memory(begun)


def compile_settled(module: Module, options: Options) -> CompiledProgram:
    """Compile a verified module without the cache, the best way to cut it looked for if asked."""
    settled = settled_options(module, None, options)
    return settled.program or compile_verified(settled.module, settled.options)


def compile_as_asked(module: Module, options: Options) -> CompiledProgram | None:
    """Compile as the command does with these options, but nothing else where that does not fit.

    None where a cut is looked for, and none that was compiled fits. What fits with less code of
    exchanges alone is compiled as the command does, which looks for what is faster.
    """
    settled = settled_options(module, None, options)
    if settled.choice is not None:
        return settled.program
    program = compile_once(module, settled.options)
    if program.fits and program.memory_plan.forms.are_smaller:
        return compile_verified(module, settled.options)
    return program


def compile_once(
    module: Module, options: Options, phase: Clock = unmeasured, *, fingerprint: str = ""
) -> CompiledProgram:
    """Compile a verified module as options say; `recompute="auto"` is like `none`."""
    with without_collection():
        begun = _begun(module, options, phase)
        with plugins(options):
            finished = continued(begun, clock=phase)
        program = _programmed(module, fingerprint, finished, options)
        with phase("memory"):
            program = program.with_chosen_forms()
        with phase("proof"):
            prove(program.program, program.machine.chip.tiles_per_ipu)
        return program


def _begun(module: Module, options: Options, phase: Clock) -> Compilation:
    """Return the first phases of compiling, which `outline` changes nothing of."""
    with plugins(options):
        return compile_module(module, compile_request(options), Phase.CUT, phase)


def _programmed(
    module: Module, fingerprint: str, finished: Compilation, options: Options
) -> CompiledProgram:
    machine = finished.request.machine
    program = with_hosts(in_system(finished, machine, options), options)
    check_ipus(taken_ipus(finished), machine, options)
    written = module if finished.partitioned is None else finished.partitioned.module
    lines = cut_lines(module, finished, options) + taken_lines(program, machine, options)
    return CompiledProgram(
        program,
        machine,
        code_memory=options.code_memory,
        over_memory=_over_memory(options),
        sources=LINES_MEMO.of(Same(written), lambda: source_lines(written)),
        parameter_names=tuple(printable(array.name) for array in parameter_arrays(module)),
        options={
            **shown_options(options),
            **({"cut": lines} if lines else {}),
            **({"hoisting": dict(finished.hoisting)} if finished.hoisting else {}),
            **_kept_between_runs(module, finished.request, program),
        },
        assume_trips=options.assume_trips,
        fingerprint=fingerprint,
        advisor=_Advisor(module, options),
        describe=_Describe(finished.module, written, options),
        known_memory=finished.memory,
        is_proved=True,
    )


LINES_MEMO: "Memo[dict[str, str]]" = Memo(1)
"""Source lines of the module at hand, of which several programs may be made."""


def _kept_between_runs(
    module: Module, request: CompileRequest, program: Program
) -> dict[str, Mapping[str, Any]]:
    """Return which ports of a plain program carry what would stay on the device between runs."""
    if program.is_resident or program.stacks:
        return {}
    ports = kept_between_runs(module, request.wrapping)
    return {"kept_between_runs": ports} if ports else {}


@dataclass(frozen=True)
class _Describe:
    """Tells reports of a module: its ops, and what passes made of the one that was read."""

    lowered: Module
    given: Module
    options: Options

    def __call__(self) -> Mapping[str, Any]:
        from hloipu_compiler.analysis.module_facts import module_facts

        with plugins(self.options), without_collection():
            passes = pass_rows(self.given, pipeline_of(self.options))
        return {**module_facts(self.lowered), "passes": passes}


class _Advisor:
    """Finds what makes a program fit, by compiling its module with one change after the other."""

    def __init__(self, module: Module, options: Options) -> None:
        self.module = module
        self.options = options
        self.seconds: float = 0.0
        """That compiling took; known when it is through."""

    def __call__(self, program: CompiledProgram) -> Fitting:
        """Return what makes it fit, after as long as compiling took at most."""
        from hloipu.advice.fitting import what_fits  # few programs need it
        from hloipu.advice.trials import Limit

        limit = Limit(seconds=max(self.seconds, _UNNOTICED_SECONDS))
        with doing("what would fit"):
            return what_fits(self.module, self.options, program, compile_as_asked, limit)


def planned(module: Module, options: Options) -> Sequence[Record]:
    """Return what planners chose for a verified module, compiled as options say."""
    with plugins(options):
        return compile_module(module, replace(compile_request(options), keeps_plans=True)).plans


def _over_memory(options: Options) -> "OverMemory":
    return "allow" if options.over_memory == "allow" else "refuse"
