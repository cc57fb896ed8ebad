"""The search: makes, verifies and tests candidates, and keeps the interesting ones.

Delta debugging: edits are tried on all of their items at once, then on halves, then on single ones.
Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), figure 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, NamedTuple

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_compiler.reduce.loop_state import changed_elements
from hloipu_compiler.reduce.rewriting import Key, NotReducibleError, cleaned
from hloipu_compiler.reduce.simplifying import is_zero
from hloipu_runtime.element_types import C64, F32, PRED, S32
from hloipu_runtime.errors import LimitError

_HANDING = frozenset({"tuple", "get-tuple-element"})
"""Opcodes that hand values on; parameters, constants and repeated constants compute nothing as
well."""
_PLAIN_TYPES = frozenset({F32, S32, C64, PRED})


Interesting = Callable[[str], bool]
"""Whether a text still shows what is looked for."""
Items = Callable[[Module], Sequence[Key]]
Apply = Callable[[Module, Sequence[Key]], Module]
Ending = Literal["smallest", "tests", "time"]
"""No pass can shrink it further; the tests that are allowed ran out; so did the time."""

NONSENSE = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What edits may end in on a module that does not verify."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a reduction after a test."""

    pass_name: str
    tests: int
    instructions: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a search."""

    interesting: Interesting
    is_valid: Callable[[Module], bool]
    """Whether a candidate may be tested at all; cheap beside `interesting`."""
    refusals: tuple[type[Exception], ...]
    """What edits may end in besides saying that they have no meaning: on faulty modules, anything;
    on others that would be a fault of the edit, not to be passed over."""
    most_tests: int
    report: Callable[[Progress], None]
    """Called after each test."""
    improved: Callable[[Module, str], None]
    """Called with each module that is kept, and its text."""
    is_over: Callable[[], bool]
    """Whether the time is up; asked before each candidate."""


class StoppedError(Exception):
    """The tests or the time that were allowed are used up."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending: Ending = ending


class Search:
    """The smallest module so far, and which texts were tried."""

    def __init__(self, module: Module, rules: Rules) -> None:
        self.module = module.without_places()
        self.text = print_module(module)
        self.tests = 0
        self.pass_name = ""
        self.may_grow = False
        """Whether candidates may weigh more than what they stand for: calls written out do."""
        self._rules = rules
        self._refusals: tuple[type[Exception], ...] = (
            NotReducibleError, InvalidHloError, LimitError, *rules.refusals,
        )  # fmt: skip
        self._tried: set[bytes] = set()
        self._drops_dead_code = False
        self._weight = weight_of(self.module, self.text)

    def begin(self) -> None:
        """Drop dead code, from all candidates that follow, unless it is what is interesting."""
        self._drops_dead_code = self.holds(lambda: cleaned(self.module))

    @property
    def drops_dead_code(self) -> bool:
        """Whether candidates lose their dead code before they are tested."""
        return self._drops_dead_code

    def holds(self, make: Callable[[], Module]) -> bool:
        """Whether a candidate is the module at hand, or can take its place, which it then does."""
        return self._judge(make) is not False

    def attempt(self, make: Callable[[], Module]) -> bool:
        """Whether a candidate is another module that can take this one's place, which it does."""
        return self._judge(make) is True

    def _judge(self, make: Callable[[], Module]) -> bool | None:
        """Make a candidate and keep it if it is valid and interesting; None: it is the same."""
        if self._rules.is_over():
            raise StoppedError("time")
        try:
            candidate = make()
            if self._drops_dead_code:
                candidate = cleaned(candidate)
            text = print_module(candidate)
            if text == self.text:
                return None
            weight = weight_of(candidate, text)
            if weight >= self._weight and not self.may_grow:
                return False
            digest = sha256(text.encode("utf-8", "surrogateescape")).digest()
            if digest in self._tried:
                return False
            self._tried.add(digest)
            module = parse(text)
            if not self._rules.is_valid(module):
                return False
        except self._refusals:
            return False
        if not self.test(text):
            return False
        self.module, self.text, self._weight = module.without_places(), text, weight
        self._rules.improved(self.module, text)
        self._tell()
        return True

    def test(self, text: str) -> bool:
        """Ask the test about a text; raises StoppedError where it may not be asked again."""
        if self.tests >= self._rules.most_tests:
            raise StoppedError("tests")
        self.tests += 1
        is_interesting = self._rules.interesting(text)
        if not is_interesting:
            self._tell()
        return is_interesting

    def _tell(self) -> None:
        self._rules.report(Progress(self.pass_name, self.tests, self.module.instruction_count))


def halving(items: Items, apply: Apply) -> Callable[[Search], None]:
    """Return the pass that tries an edit on all items at once, then on halves, down to one."""

    def run(search: Search) -> None:
        left = items(search.module)
        step = len(left)
        while step >= 1 and left:
            at = 0
            while at < len(left):
                chunk = left[at : at + step]
                if search.attempt(lambda keys=chunk: apply(search.module, keys)):  # type: ignore[misc]
                    # The items behind this chunk move up; those before it were refused.
                    left = items(search.module)
                else:
                    at += step
            step = min(step, len(left)) // 2

    return run


def one_of(items: Items, apply: Apply) -> Callable[[Search], None]:
    """Return the pass that tries an edit on one item after the other, as often as one will do."""

    def run(search: Search) -> None:
        left = list(items(search.module))
        while left:
            key = left.pop(0)
            if search.attempt(lambda: apply(search.module, [key])):  # noqa: B023 - called at once
                left = list(items(search.module))

    return run


def shortest(search: Search, length: int, make: Callable[[Module, int], Module]) -> int:
    """Return the smallest length at which a candidate is interesting, by bisection; keep that.

    The module at hand stands for `length` itself. Where longer candidates than an interesting one
    are not, the result is one of several.
    """
    base, low, high = search.module, 0, length
    while high - low > 1:
        middle = (low + high) // 2
        if search.holds(lambda: make(base, middle)):  # noqa: B023 - called at once
            high = middle
        else:
            low = middle
    return high


class Weight(NamedTuple):
    """Weight of a module, which every edit but inlining lowers; the first number counts most."""

    computing: int
    """Instructions that compute something; loops and conditionals count twice, since a call of what
    they call takes their place."""
    tuple_parameters: int
    """Tuples among the shapes of the entry's parameters."""
    changed: int
    """Elements of loops' states that are not handed on as they are."""
    carried: int
    """Elements of loops' states."""
    reads: int
    """Reads of elements of tuples."""
    sizes: int
    """Sum of all sizes of dimensions."""
    other_types: int
    """Arrays of other types than f32, s32, c64 and pred."""
    instructions: int
    text: int
    """Characters."""


def weight_of(module: Module, text: str) -> Weight:
    """Return the weight of a module, whose text is given."""
    computing = carried = reads = sizes = other_types = 0
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "while":
                carried += sum(1 for _ in leaves(instruction.shape))
            if instruction.opcode == "get-tuple-element":
                reads += 1
            if instruction.opcode not in _HANDING and not is_zero(computation, instruction):
                computing += 2 if instruction.opcode in ("while", "conditional") else 1
            for _, leaf in leaves(instruction.shape):
                array = leaf.contents if isinstance(leaf, BufferShape) else leaf
                sizes += sum(array.dimensions)
                other_types += array.element_type not in _PLAIN_TYPES
    tuples = sum(_tuples(module.entry.instructions[i].shape) for i in module.entry.parameters)
    changed = len(changed_elements(module))
    count = module.instruction_count
    return Weight(computing, tuples, changed, carried, reads, sizes, other_types, count, len(text))


def _tuples(shape: Shape) -> int:
    if isinstance(shape, ArrayShape | BufferShape):
        return 0
    assert isinstance(shape, TupleShape)
    return 1 + sum(map(_tuples, shape.elements))
