"""Compiles a module again that does not fit: what attempts have in common is done once."""

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING
from weakref import ref

from hloipu.compile_request import compile_request, pipeline_of, plugins
from hloipu.fitting.leaner import (
    WithRooms,
    changes,
    lacking_bytes,
    leaner_options,
    may_make_again,
    may_weigh_code,
    with_smaller_products,
    with_smaller_shares,
)
from hloipu.options.table import Options
from hloipu_compiler.analysis.code_size import LEAST_OUTLINED_BYTES, inlined_code_bytes
from hloipu_compiler.compilation import Clock, Compilation, Phase
from hloipu_compiler.driver import compile_module, continued
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.memo import Memo, Same
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.program import Program
from hloipu_runtime.watching import Search, doing

if TYPE_CHECKING:
    from hloipu_compiler.planners.product_room import Rooms

_USUAL = Options()

_MOST_PERCENT = 101
"""Of its cycles, for which nothing faster than a program that fits is looked for. Assumed."""

_KEPT = 2
"""Cuts and modules: those with equal blocks as functions and those without."""

_WEIGHED_FORMS = MappingProxyType(
    {
        True: "weighing the code of stages and functions",
        False: "trying functions without single reductions",
    }
)
"""What is tried with and without reductions as functions."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a module is compiled to see whether it fits; `recompute="auto"` is like `none`."""

    options: Options
    rooms: "Rooms" = field(default_factory=lambda: MappingProxyType({}))
    """What products may take, from a program of the module that did not fit."""
    weighs_code: bool = False
    """Whether code of loops, branches and stages counts where code is weighed, single ops that come
    again become functions, and the last stage makes cheap values again where all compute again."""
    parts_reductions: bool = True
    """Whether single reductions become functions, too, apart from those of the same values."""


class Attempts:
    """Programs of one module, none of them proved; drafts, where they lack memory.

    The memory that plans may take changes programs alone: a step's cut, and what passes make of it,
    are those of the first attempt with the same other options. `program_of` makes programs of
    compilations; `phase` encloses each part of the work.
    """

    def __init__(
        self,
        module: Module,
        phase: Clock,
        program_of: Callable[[Compilation, Options], CompiledProgram],
    ) -> None:
        self.module = module
        self.phase = phase
        self.program_of = program_of
        self._cuts: Memo[Compilation] = Memo(_KEPT)
        self._passed: Memo[Compilation] = Memo(_KEPT)
        self._drafts: list[tuple[ref[CompiledProgram], Options, Compilation]] = []
        """With the lowered compilations that they were made of; programs that nobody has any more
        are let go with these, which take tens of megabytes each."""
        self._smaller: CompiledProgram | None = None
        """The fastest program that fits with smaller code of exchanges, ..."""
        self._with_all_code: CompiledProgram | None = None
        """... and the draft that it was."""

    def looked_at(self, program: CompiledProgram) -> CompiledProgram:
        """Return a program, or it with smaller code of exchanges if it fits so and is fast enough.

        That is if it takes at most `_MOST_PERCENT` of the cycles with the fastest exchanges, or no
        more than the draft that lacks memory: what takes less memory takes more cycles.
        """
        with self.phase("memory"):
            if program.fits or program.memory_plan.lacks_with_any_forms:
                return program
            known_cycles = _cycles(self._smaller) if self._smaller is not None else None
            if known_cycles is not None and _least_cycles(program) >= known_cycles:
                return program
            smaller = program.with_chosen_forms()
            if not smaller.fits:
                return program
            cycles = _cycles(smaller)
            if known_cycles is not None and cycles >= known_cycles:
                return program
            self._smaller, self._with_all_code = smaller, program
            if cycles <= _cycles(program):
                return smaller
            is_near = 100 * cycles <= _MOST_PERCENT * _least_cycles(program)
            return smaller if is_near else program

    def fastest(self, program: CompiledProgram) -> CompiledProgram:
        """Return a program, or one that fits with smaller code if that fits alone or is faster."""
        smaller = self._smaller
        if smaller is None or (program.fits and _cycles(program) <= _cycles(smaller)):
            return program
        return smaller

    def begin(self, options: Options, cut: Compilation, passed: Compilation) -> None:
        """Take phases of an attempt as known."""
        self._cuts.of(_cut_key(Attempt(options)), lambda: cut)
        key = _passes_key(Attempt(options), outlines=passed.request.outlines)
        self._passed.of((Same(cut.module), key), lambda: passed)

    def draft(
        self,
        program: CompiledProgram,
        options: Options,
        lowered: Compilation,
        compilation: Compilation,
    ) -> None:
        """Take a program as a draft, if it is one; `lowered`: what its compilation was made of."""
        self._drafts = [draft for draft in self._drafts if draft[0]() is not None]
        if compilation.draft is not None:
            known = replace(lowered, draft=compilation.draft)
            self._drafts.append((ref(program), options, known))

    def program(self, attempt: Attempt) -> CompiledProgram:
        """Return the program of an attempt."""
        options, asked = attempt.options, compile_request(attempt.options)
        cut = self._cuts.of(_cut_key(attempt), lambda: self._cut(attempt))
        tuning = replace(asked.tuning, counts_called_code=attempt.weighs_code)
        request = replace(
            cut.request,
            outlines=asked.outlines,
            parts_reductions=attempt.parts_reductions,
            tuning=tuning,
        )
        outlined = replace(cut, request=request)
        with plugins(options):
            passed = self._passed.of(
                (Same(cut.module), _passes_key(attempt, outlines=asked.outlines)),
                lambda: continued(outlined, Phase.PASSES, self.phase).for_many_programs(),
            )
        rooms = attempt.rooms
        request = replace(passed.request, tuning=tuning, product_rooms=rooms, is_draft=True)
        plan = replace(passed.plan, product_rooms=rooms)
        return self._compiled(replace(passed, request=request, plan=plan), options)

    def finished(self, program: CompiledProgram) -> CompiledProgram:
        """Return a draft with copies before loops as far as there is room, others as they are."""
        wanted = self._with_all_code if program is self._smaller else program
        for kept, options, lowered in self._drafts:
            draft = kept()
            if draft is not None and draft is wanted:
                request = replace(lowered.request, is_draft=False)
                compilation = continued(replace(lowered, request=request), clock=self.phase)
                whole = self.program_of(compilation, options)
                if _has_steps_of(whole.program, draft.program):
                    return program  # no copy has room before a loop
                with self.phase("memory"):
                    whole = whole.with_chosen_forms()
                    return whole if whole.fits or not program.fits else program
        return program

    def _cut(self, attempt: Attempt) -> Compilation:
        """Return the phases that `outline` changes nothing of."""
        request = compile_request(attempt.options)
        cut = replace(request.pipelining, lacks_memory=attempt.weighs_code)
        with plugins(attempt.options):
            request = replace(request, pipelining=cut, outlines=False)
            return compile_module(self.module, request, Phase.CUT, self.phase)

    def _compiled(self, passed: Compilation, options: Options) -> CompiledProgram:
        with plugins(options):
            lowered = continued(passed, Phase.LOWERED, self.phase)
            for draft, _, known in self._drafts:
                program = draft()
                if program is not None and _is_same(known, lowered):
                    return program  # plans took less than they might
            compilation = continued(lowered, clock=self.phase)
        program = self.program_of(compilation, options)
        self.draft(program, options, lowered, compilation)
        return self.looked_at(program)


def _has_steps_of(program: Program, other: Program) -> bool:
    """Whether the steps of a program are those of another one, not just alike."""
    names = program.functions.keys()
    return program.body is other.body and all(
        program.functions[name] is other.functions.get(name) for name in names
    )


def _is_same(first: Compilation, second: Compilation) -> bool:
    """Whether two compilations were lowered to one program, bit for bit in its constants."""
    if first.lowered is None or second.lowered is None:
        return False
    ours, theirs = first.lowered.constants, second.lowered.constants
    return (
        ours.keys() == theirs.keys()
        and all(ours[key][0] == theirs[key][0] for key in ours)
        and replace(first.lowered, constants={}) == replace(second.lowered, constants={})
        and all(ours[key][1].tobytes() == theirs[key][1].tobytes() for key in ours)
    )


def _cycles(program: CompiledProgram) -> int:
    return program.estimate().lower_bound_cycles


def _least_cycles(program: CompiledProgram) -> int:
    """Return the cycles of a program whose exchanges are all as fast as they can be."""
    fastest = program.memory_plan.forms.fastest()
    costs = step_charges(program.program, program.machine, fastest)
    asked = program.program, program.machine, program.assume_trips, costs
    return estimate(*asked).lower_bound_cycles


def _cut_key(attempt: Attempt) -> tuple[Options, bool]:
    share = _USUAL.available_memory_proportion
    options = replace(attempt.options, outline="auto", available_memory_proportion=share)
    return options, attempt.weighs_code and options.recompute == "full"


def _passes_key(attempt: Attempt, *, outlines: bool) -> tuple[str, bool, bool, bool]:
    """Return what passes depend on, and which equal blocks become functions."""
    weighs_code = outlines and attempt.weighs_code
    pipeline = pipeline_of(attempt.options)
    return pipeline, outlines, weighs_code, weighs_code and attempt.parts_reductions


def fitting(
    attempts: Attempts, options: Options, program: CompiledProgram, search: Search
) -> CompiledProgram:
    """Return a program that fits in place of one that does not, or the one that lacks least.

    `options`: of the program. Ends with the best so far as the search says.
    """
    program = _draft_that_fits(attempts, options, program, search)
    return search.tried(lambda: attempts.finished(program)) or program


def _draft_that_fits(
    attempts: Attempts, options: Options, program: CompiledProgram, search: Search
) -> CompiledProgram:
    """Return the same as a draft."""
    asked, program = options, search.tried(lambda: attempts.looked_at(program)) or program
    if options.outline == "auto" and not options.passes and not program.fits:
        outlined = search.tried(lambda: _outlined_if_less(attempts, options, program))
        program, options = outlined or (program, options)
    program = search.tried(lambda: _leaner(attempts, options, asked, program, search)) or program
    return attempts.fastest(program)


def _outlined_if_less(
    attempts: Attempts, options: Options, program: CompiledProgram
) -> tuple[CompiledProgram, Options]:
    """Return a program with equal blocks as functions if it lacks less memory, and its options."""
    phase = attempts.phase
    with phase("memory"):
        lacking = lacking_bytes(program)
        is_hopeless = program.memory_plan.lacks_in_any_order
    if is_hopeless or inlined_code_bytes(attempts.module) < LEAST_OUTLINED_BYTES:
        return program, options
    asked = replace(options, outline="on")
    with doing("trying --outline on"):
        tried = attempts.program(Attempt(asked))
    with phase("memory"):
        return (tried, asked) if lacking_bytes(tried) < lacking else (program, options)


def _leaner(
    attempts: Attempts, options: Options, asked: Options, program: CompiledProgram, search: Search
) -> CompiledProgram:
    """Return a program that fits in place of one that does not, or one that lacks less.

    `options`: of the program; `asked`: those that people gave.
    """
    phase = attempts.phase
    with phase("memory"):
        if program.fits:
            return program
    attempt, planned = _with_less_at_once(attempts, options, program, search)
    program, least, rooms, _ = planned
    with phase("memory"):
        if program.fits:
            return program
    fitting_program = search.tried(
        lambda: _with_leaner_options(attempts, attempt, options, asked, least, search)
    )
    if fitting_program is not None:
        return fitting_program
    smaller = search.tried(
        lambda: with_smaller_shares(
            attempt.options,
            least,
            phase,
            lambda shares: attempts.program(replace(attempt, options=shares, rooms=rooms)),
        )
    )
    if smaller is None:
        return program
    least, shares = smaller
    attempt = replace(attempt, options=shares, rooms=rooms)
    before = planned._replace(may_spare=True)
    return _with_smaller_products(attempts, attempt, least, search, before).best


def _with_less_at_once(
    attempts: Attempts, options: Options, program: CompiledProgram, search: Search
) -> tuple[Attempt, WithRooms]:
    """Return the attempt that lacks least with smaller products, cheap values made again and code.

    `program`: of these options, which does not fit. Ends with the first that does.
    """
    phase = attempts.phase
    attempt, first = Attempt(options), program
    planned = WithRooms(program, program, {})
    with phase("memory"):
        lacks_for_code = not program.memory_plan.has_room_for_code
    if lacks_for_code:
        # Smaller products have more pieces, so they take more code.
        attempt, planned = _with_code_weighed(attempts, attempt, planned, program, search)
    if not attempt.weighs_code:
        planned = _with_smaller_products(attempts, attempt, program, search)
    makes_again = options.recompute == "auto" and not options.passes
    if makes_again and not planned.best.fits and may_make_again(planned.least):
        cheap = replace(attempt, options=replace(options, recompute="cheap"))
        with doing("; ".join(changes(options, cheap.options))):
            again = search.tried(lambda: attempts.program(cheap))
        if again is not None:
            others = _with_smaller_products(attempts, cheap, again, search)
            with phase("memory"):
                if lacking_bytes(others.least) < lacking_bytes(planned.least):
                    attempt, planned, first = cheap, others, again
    was_weighed = attempt.weighs_code or (lacks_for_code and first is program)
    if not planned.best.fits and not was_weighed:
        attempt, planned = _with_code_weighed(attempts, attempt, planned, first, search)
    return attempt, planned


def _with_leaner_options(
    attempts: Attempts,
    attempt: Attempt,
    options: Options,
    asked: Options,
    least: CompiledProgram,
    search: Search,
) -> CompiledProgram | None:
    """Return a program that fits with other options of `auto` than `attempt` has; None: none does.

    `options`: of the program that did not fit; `asked`: those that people gave; `least`: the one
    that lacks least so far.
    """
    phase = attempts.phase
    for leaner in leaner_options(attempts.module, options, least, phase):
        by_itself = replace(asked, recompute=leaner.recompute)
        is_kind = leaner.recompute != options.recompute
        form, as_asked = replace(attempt, options=leaner, rooms={}), Attempt(by_itself)
        with doing("; ".join(changes(options, leaner))):
            tried = attempts.program(form)
            with phase("memory"):
                if tried.fits:
                    is_free = asked.outline == "auto"
                    return _without_functions(attempts, leaner, tried, search) if is_free else tried
            if is_kind:
                # What fits as it is asked for has to be found without being asked for, too.
                first = tried if form == as_asked else attempts.program(as_asked)
                tried = _draft_that_fits(attempts, by_itself, first, search)
                if tried.fits:
                    return tried
    return None


def _without_functions(
    attempts: Attempts, options: Options, program: CompiledProgram, search: Search
) -> CompiledProgram:
    """Return a program that fits, or the faster one with each block of its own if that fits, too.

    Calls of functions copy what they are given. `options`: of the program, which spares memory by
    them in ways that were not tried without functions.
    """
    if options.outline != "on":
        return program
    own_blocks = Attempt(replace(options, outline="auto"))
    with doing("trying without functions"):
        tried = search.tried(lambda: attempts.program(own_blocks))
    with attempts.phase("memory"):
        is_better = tried is not None and tried.fits and _cycles(tried) < _cycles(program)
    return tried if tried is not None and is_better else program


def _with_code_weighed(
    attempts: Attempts, attempt: Attempt, planned: WithRooms, first: CompiledProgram, search: Search
) -> tuple[Attempt, WithRooms]:
    """Return an attempt in which code has its price if that lacks less, and what came of it.

    `attempt`: by which `first` was made, and `planned` of that. What products of `planned` do
    without was the code's, so they are planned anew, in the form that lacks least first.
    """
    if not may_weigh_code(first):
        return attempt, planned
    weighed: list[tuple[Attempt, CompiledProgram]] = []
    for parts_reductions, told in _WEIGHED_FORMS.items():
        if weighed and (weighed[0][1].fits or attempt.options.outline != "on"):
            break
        form = Attempt(attempt.options, weighs_code=True, parts_reductions=parts_reductions)
        with doing(told):
            program = search.tried(partial(attempts.program, form))
        if program is not None:
            weighed.append((form, program))
    with attempts.phase("memory"):
        weighed.sort(key=lambda x: lacking_bytes(x[1]))
    for form, program in weighed:
        if planned.best.fits or lacking_bytes(program) >= lacking_bytes(first):
            break
        others = _with_smaller_products(attempts, form, program, search, planned)
        with attempts.phase("memory"):
            if lacking_bytes(others.least) < lacking_bytes(planned.least):
                attempt, planned = form, others
    return attempt, planned


def _with_smaller_products(
    attempts: Attempts,
    attempt: Attempt,
    program: CompiledProgram,
    search: Search,
    before: WithRooms | None = None,
) -> WithRooms:
    """Return what comes of an attempt; `before`: what came of the module's attempt before."""
    begin = WithRooms(program, program, attempt.rooms)
    if before is not None:
        begin = begin._replace(best=before.best, may_spare=before.may_spare)
    with doing("planning products smaller"):
        planned = search.tried(
            lambda: with_smaller_products(
                begin,
                attempts.phase,
                lambda rooms: attempts.program(replace(attempt, rooms=rooms)),
            )
        )
    return planned or begin
