"""Reduction: pass after pass over a module, coarse edits first, keeping what is interesting.

A pass never minds whether a candidate is valid or still interesting; `search` asks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce import calls, entry, inputs, loop_state, shrinking, simplifying
from hloipu_compiler.reduce.search import (
    NONSENSE,
    Ending,
    Interesting,
    Progress,
    Rules,
    Search,
    StoppedError,
    halving,
    one_of,
    shortest,
)
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.element_types import C64, F32, S32, ElementType
from hloipu_runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of edit."""

    name: str
    run: Callable[[Search], None]
    begins_anew: bool = False
    """Whether the passes before it have more to cut once it has changed the module."""
    may_grow: bool = False
    """Whether it may leave a larger module; what it does must come to an end by itself."""


def cut_after(search: Search) -> None:
    """Find the first instruction of the entry with which a prefix is interesting; end with it."""
    base = search.module
    length = shortest(search, len(base.entry.instructions), entry.cut_after)
    search.attempt(lambda: entry.with_results(base, [length - 1]))


def cut_before(search: Search) -> None:
    """Find the longest prefix of the entry that parameters can stand for."""
    count = len(search.module.entry.instructions)
    shortest(search, count + 1, lambda base, left: entry.cut_before(base, count + 1 - left))


def cut_loops(search: Search) -> None:
    """Apply `cut_after` and `cut_before` to loop bodies."""
    for name in inputs.loop_bodies(search.module):
        if name not in search.module.computation:
            continue
        count = len(search.module.computation[name].instructions)
        shortest(search, count, lambda base, length: inputs.cut_body_after(base, name, length))  # noqa: B023 - called at once
        halving(loop_state.changed_elements, loop_state.keep_elements)(search)
        count = len(search.module.computation[name].instructions)
        shortest(
            search,
            count + 1,
            lambda base, left: inputs.cut_body_before(base, name, count + 1 - left),  # noqa: B023 - called at once
        )


def drop_what_nothing_needs(search: Search) -> None:
    """Drop dead code piecemeal, where some of it is what makes the module interesting."""
    if not search.drops_dead_code:
        halving(simplifying.uncalled_computations, simplifying.drop_computations)(search)
        halving(simplifying.dead_instructions, simplifying.drop_instructions)(search)


def shrink_sizes(search: Search) -> None:
    """Shrink sizes to 1, 2 or halves, as often as possible."""

    def shrinks(old: int, new: int) -> bool:
        return any(
            search.attempt(lambda: shrinking.resized(search.module, change(old, new)))  # noqa: B023 - called at once
            for change in (shrinking.only, shrinking.multiples)
        )

    for size in shrinking.sizes_of(search.module):
        if not any(shrinks(size, new) for new in (1, 2) if new < size):
            while size > 5 and shrinks(size, size // 2):
                size //= 2


def plain_types(search: Search) -> None:
    """Replace other types by f32, s32 and c64."""
    for old in shrinking.types_of(search.module):
        search.attempt(lambda: shrinking.retyped(search.module, old, plain(old)))  # noqa: B023 - called at once


def plain(element: ElementType) -> ElementType:
    """Return the plainest type of the same kind."""
    if element.is_complex:
        return C64
    if element.is_float:
        return F32
    return S32 if element.is_integer else element


PASSES = (
    Pass("header", halving(simplifying.header_items, simplifying.drop_header_items)),
    Pass("metadata", halving(simplifying.decorated, simplifying.drop_decorations)),
    Pass("dead code", drop_what_nothing_needs),
    Pass("cut after", cut_after),
    Pass("results", halving(entry.outputs, entry.drop_outputs)),
    Pass("earlier root", one_of(entry.earlier_roots, entry.move_root)),
    Pass("cut before", cut_before),
    Pass("parameters for values", halving(entry.replaceable, entry.to_parameters)),
    Pass("split parameters", halving(entry.tuple_parameters, entry.split_parameters)),
    Pass("read tuples", halving(entry.elements_of_tuples, entry.read_directly)),
    Pass("unused parameters", halving(entry.unused_parameters, entry.drop_parameters)),
    Pass("callee as entry", one_of(calls.hoistable, calls.hoisted), begins_anew=True),
    Pass("inline calls", halving(calls.calls, calls.inlined), begins_anew=True, may_grow=True),
    Pass("one branch, one trip", halving(calls.branches, calls.to_calls), begins_anew=True),
    Pass("cut loops", cut_loops),
    Pass("state unchanged", halving(loop_state.changed_elements, loop_state.keep_elements)),
    Pass("state dropped", halving(loop_state.state_elements, loop_state.narrowed_loops)),
    Pass("inputs for values", halving(inputs.computed_below, inputs.to_inputs)),
    Pass("operands for values", halving(simplifying.operand_choices, simplifying.to_operands)),
    Pass("zeros for values", halving(simplifying.not_zero, simplifying.to_zeros)),
    Pass("sizes", shrink_sizes),
    Pass("types", plain_types),
)
"""In the order in which they are tried: what cuts most comes first."""


MOST_TESTS = 2000


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest module found."""

    module: Module
    text: str
    tests: int
    ending: Ending


def verifies(module: Module) -> bool:
    """Whether a module has no fault."""
    return not faults_of(module, most=1)


def reduce_module(
    module: Module,
    interesting: Interesting,
    *,
    most_tests: int = MOST_TESTS,
    is_valid: Callable[[Module], bool] = verifies,
    report: Callable[[Progress], None] = lambda _: None,
    improved: Callable[[Module, str], None] = lambda *_: None,
    is_over: Callable[[], bool] = lambda: False,
    passes: Sequence[Pass] = PASSES,
) -> Reduced:
    """Return the smallest form of a module for which `interesting` holds.

    Every text that is tried parses, and is valid as `is_valid` says: by default it verifies, as the
    module must. `improved` is told of each module that is kept, the first among them, and `is_over`
    is asked before each candidate. Raises UsageError E3115 where the module itself is not
    interesting.
    """
    refusals = () if is_valid is verifies else NONSENSE
    rules = Rules(interesting, is_valid, refusals, most_tests, report, improved, is_over)
    search = Search(module, rules)
    if not search.test(search.text):
        raise UsageError(
            "E3115",
            "the test does not hold for the original module",
            hint="the test must hold for modules that show the fault, also for the first",
        )
    improved(search.module, search.text)
    try:
        _run(search, passes)
    except StoppedError as stop:
        return Reduced(search.module, search.text, search.tests, stop.ending)
    return Reduced(search.module, search.text, search.tests, "smallest")


def _run(search: Search, passes: Sequence[Pass]) -> None:
    search.pass_name = "dead code"
    search.begin()
    while True:
        before = search.text
        for reduction in passes:
            text = search.text
            search.pass_name, search.may_grow = reduction.name, reduction.may_grow
            reduction.run(search)
            if reduction.begins_anew and search.text != text:
                break
        if search.text == before:
            return


__all__ = ["Interesting", "Progress", "Reduced", "reduce_module"]
