"""Reduction: pass after pass over a module, keeping each candidate that is still interesting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce.passes import PASSES, Pass
from hloipu_compiler.reduce.search import (
    NONSENSE,
    Ending,
    Interesting,
    Progress,
    Rules,
    Search,
    StoppedError,
)
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.errors import UsageError

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
    """Run the passes until none of them shrinks the module."""
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
