"""Reduction: pass after pass over a module, keeping each candidate that is still interesting.

Delta debugging: a pass first tries all of its items at once, then halves, then single ones.
Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printer import print_module
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce.cleaning import cleaned
from hloipu_compiler.reduce.passes import PASSES
from hloipu_compiler.reduce.rewriting import NotReducibleError
from hloipu_compiler.reduce.selecting import Pass
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.errors import LimitError, UsageError

Interesting = Callable[[str], bool]
"""Whether a text still shows what is looked for."""
MOST_TESTS = 2000


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a reduction stands: after a pass's last test."""

    pass_name: str
    tests: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smallest module found."""

    module: Module
    text: str
    tests: int
    complete: bool
    """Whether no pass could shrink it further; False where the number of tests ran out."""


class _TestsSpentError(Exception):
    """The allowed number of tests was used up."""


def reduce_module(
    module: Module,
    interesting: Interesting,
    *,
    most_tests: int = MOST_TESTS,
    report: Callable[[Progress], None] | None = None,
    passes: Sequence[Pass] = PASSES,
) -> Reduced:
    """Return the smallest form of a verified module for which `interesting` holds.

    Every text that is tried parses and verifies. Raises UsageError E3115 where the module itself is
    not interesting.
    """
    work = _Reduction(module, interesting, most_tests, report)
    if not work.is_interesting(print_module(module)):
        raise UsageError(
            "E3115",
            "the test does not hold for the module as it is",
            hint="the test must exit with 0 on modules that show the fault, also on the first",
        )
    try:
        work.run(passes)
    except _TestsSpentError:
        return work.result(complete=False)
    return work.result(complete=True)


class _Reduction:
    """The smallest module so far, and which texts were tried."""

    def __init__(
        self,
        module: Module,
        interesting: Interesting,
        most_tests: int,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.module = module.without_places()
        self.text = print_module(module)
        self.tests = 0
        self._interesting = interesting
        self._most_tests = most_tests
        self._report = report
        self._tried: set[str] = set()
        self._clean = False

    def result(self, *, complete: bool) -> Reduced:
        return Reduced(self.module, self.text, self.tests, complete)

    def run(self, passes: Sequence[Pass]) -> None:
        """Run the passes until none of them shrinks the module."""
        # Where dead code is what makes the module interesting, the passes take it out piecemeal.
        self._clean = False
        self._clean = self._try(lambda: cleaned(self.module)) or self.text == print_module(
            cleaned(self.module)
        )
        before = ""
        while before != self.text:
            before = self.text
            for one in passes:
                self._run_pass(one)

    def _run_pass(self, one: Pass) -> None:
        items = one.items(self.module)
        step = len(items) if one.chunked else 1
        while step >= 1 and items:
            at = 0
            while at < len(items):
                chunk = items[at : at + step]
                if self._try(lambda keys=chunk: one.apply(self.module, keys)):  # type: ignore[misc]
                    # The items behind this chunk move up; those before it were refused.
                    items = one.items(self.module)
                else:
                    at += step
                self._tell(one.name)
            step = min(step, len(items)) // 2

    def _try(self, make: Callable[[], Module]) -> bool:
        """Make a candidate and keep it if it is new, valid and interesting."""
        try:
            candidate = make()
            text = print_module(cleaned(candidate) if self._clean else candidate)
            if text == self.text or text in self._tried:
                return False
            self._tried.add(text)
            module = parse(text)
            if faults_of(module, most=1):
                return False
        except (NotReducibleError, InvalidHloError, LimitError):
            return False
        if not self.is_interesting(text):
            return False
        self.module, self.text = module.without_places(), text
        return True

    def is_interesting(self, text: str) -> bool:
        """Ask the test about a text; raises _TestsSpentError where it may not be asked again."""
        if self.tests >= self._most_tests:
            raise _TestsSpentError
        self.tests += 1
        return self._interesting(text)

    def _tell(self, name: str) -> None:
        if self._report is not None:
            self._report(Progress(name, self.tests, self.module.instruction_count))


__all__ = ["Interesting", "Progress", "Reduced", "reduce_module"]
