"""Recognises the keys of a sort comparator.

Recognised: `compare` of the same function of both sides, and the lexicographic form that JAX
prints, `lt(a0, b0) or (eq(a0, b0) and (…))`, also as a select. Anything else is left to be called.
"""

from dataclasses import dataclass

from hloipu_compiler.interpret.planning.regions import holds
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_runtime.kernels.sorting import Order
from hloipu_runtime.reached import reached

MOST_INSTRUCTIONS = 400
"""Larger comparators are called, not read: comparing two sides walks both."""


_BOTH = frozenset({"nan", "zero"})


@dataclass(frozen=True, slots=True)
class ComparatorKey:
    """One key of a comparator: a value of one operand's element, and its order."""

    operand: int
    descending: bool
    order: Order
    value: int | None
    """Position of the key's value for the left side in the comparator; None: the element itself."""


def comparator_keys(module: Module, name: str) -> list[ComparatorKey] | None:
    """Return the keys, first key first, or None where the form is not recognised."""
    computation = module.computation[name]
    if len(computation.instructions) > MOST_INSTRUCTIONS:
        return None
    return _Reader(computation).keys(computation.root)


def counts_along(computation: Computation, position: int, dimension: int) -> bool:
    """Whether an instruction is an iota along a dimension, maybe broadcast."""
    instruction = computation.instructions[position]
    while instruction.opcode == "broadcast":
        mapped = instruction.attributes.integers("dimensions")
        if dimension not in mapped:
            return False
        dimension = mapped.index(dimension)
        instruction = computation.instructions[instruction.operands[0]]
    attributes = instruction.attributes
    return instruction.opcode == "iota" and attributes.integer("iota_dimension") == dimension


class _Reader:
    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self._same: dict[tuple[int, int], bool] = {}

    def at(self, position: int) -> Instruction:
        return self.computation.instructions[position]

    def keys(self, position: int) -> list[ComparatorKey] | None:
        instruction = self.at(position)
        if instruction.opcode == "compare":
            key = self.key(instruction)
            return None if key is None else [key]
        if instruction.opcode == "select":
            if self._is_true(instruction.operands[0]):  # As XLA's top k is written.
                return self.keys(instruction.operands[1])
            return self._lexicographic_select(*instruction.operands)
        if instruction.opcode != "or":
            return None
        for first, second in (instruction.operands, instruction.operands[::-1]):
            keys = self._lexicographic(first, second)
            if keys is not None:
                return keys
        return None

    def _is_true(self, position: int) -> bool:
        instruction = self.at(position)
        if Trait.DATA_MOVEMENT in OPS[instruction.opcode].traits and instruction.operands:
            instruction = self.at(instruction.operands[0])
        return instruction.literal is not None and instruction.literal.text == "true"

    def _lexicographic(self, first: int, conjunction: int) -> list[ComparatorKey] | None:
        """Read `first or (equal and others)`, where `equal` is about the operands of `first`."""
        less, both = self.at(first), self.at(conjunction)
        if less.opcode != "compare" or both.opcode != "and":
            return None
        key = self.key(less)
        for equal, further in (both.operands, both.operands[::-1]):
            test = self.at(equal)
            if test.opcode != "compare" or test.attributes.text("direction") != "EQ":
                continue
            if key is None or sorted(test.operands) != sorted(less.operands):
                continue
            if test.attributes.text("type") != less.attributes.text("type"):
                continue  # equal as numbers is not equal in total order: the zeros
            more = self.keys(further)
            if more is not None:
                return [key, *more]
        return None

    def _lexicographic_select(
        self, equal: int, further: int, less: int
    ) -> list[ComparatorKey] | None:
        """Read `equal ? others : less`, which is the same."""
        test, first = self.at(equal), self.at(less)
        if not (test.opcode == first.opcode == "compare"):
            return None
        if test.attributes.text("type") != first.attributes.text("type"):
            return None  # equal as numbers is not equal in total order: the zeros
        if test.attributes.text("direction") != "EQ" or sorted(test.operands) != sorted(
            first.operands
        ):
            return None
        key = self.key(first)
        more = self.keys(further)
        return None if key is None or more is None else [key, *more]

    def key(self, compare: Instruction) -> ComparatorKey | None:
        """Read one comparison of f(left element) with f(right element)."""
        direction = compare.attributes.text("direction")
        if direction not in ("LT", "GT", "LE", "GE"):
            return None
        left, right = compare.operands
        parameter = self._parameter(left)
        if parameter is None:
            return None
        swapped = parameter % 2 == 1
        if swapped:
            left, right = right, left
        operand = parameter // 2
        if self._parameter(left) != 2 * operand or not self._mirrored(left, right):
            return None
        descending = (direction[0] == "G") != swapped
        total = compare.attributes.text("type") == "TOTALORDER"
        order: Order = "total" if total else "ieee"
        plain, canonical = self._behind_canonical(left)
        if self.at(plain).opcode == "parameter":
            if canonical == _BOTH:
                return ComparatorKey(operand, descending, "equal_zeros", None)
            if not canonical or not total:
                return ComparatorKey(operand, descending, order, None)
        return ComparatorKey(operand, descending, order, left)

    def _parameter(self, position: int) -> int | None:
        """Return the only parameter that a value depends on, or None."""
        ops = [self.at(i) for i in reached([position], lambda i: self.at(i).operands)]
        numbers = {op.parameter_number for op in ops if op.opcode == "parameter"}
        return numbers.pop() if len(numbers) == 1 else None

    def _mirrored(self, left: int, right: int) -> bool:
        """Whether `right` is computed from parameter 2k + 1 as `left` is from parameter 2k."""
        known = self._same.get((left, right))
        if known is not None:
            return known
        self._same[left, right] = False  # a path back here cannot exist: the graph has no cycles
        a, b = self.at(left), self.at(right)
        if a.opcode == "parameter" or b.opcode == "parameter":
            same = b.parameter_number == a.parameter_number + 1 and a.parameter_number % 2 == 0
        else:
            same = (
                a.opcode == b.opcode
                and a.shape == b.shape
                and a.attributes == b.attributes
                and a.literal == b.literal
                and len(a.operands) == len(b.operands)
                and all(map(self._mirrored, a.operands, b.operands))
            )
        self._same[left, right] = same
        return same

    def _behind_canonical(self, position: int) -> tuple[int, frozenset[str]]:
        """Skip the selects by which JAX makes all NaNs, and both zeros, equal; and widenings.

        Returns what stands behind them, and which of "nan" and "zero" were made equal.
        """
        passed = [position]
        tested: list[int] = []
        made_equal: set[str] = set()
        while True:
            instruction = self.at(passed[-1])
            if instruction.opcode == "convert" and holds(
                instruction.shape, self.at(instruction.operands[0]).shape
            ):
                passed.append(instruction.operands[0])
            elif instruction.opcode == "select" and (equalised := self._canonical(instruction)):
                tested.append(self.at(instruction.operands[0]).operands[0])
                made_equal.add(equalised)
                passed.append(instruction.operands[2])
            else:
                break
        if not set(tested) <= set(passed):
            return position, frozenset()  # chosen by another value than the one compared
        return passed[-1], frozenset(made_equal)

    def _canonical(self, instruction: Instruction) -> str:
        """Classify a select: `y != y ? nan : …` ("nan") or `y == 0 ? 0 : …` ("zero")."""
        test, replacement = self.at(instruction.operands[0]), self.at(instruction.operands[1])
        if test.opcode != "compare" or replacement.literal is None:
            return ""
        if test.attributes.text("type") == "TOTALORDER":
            return ""
        direction, text = test.attributes.text("direction"), replacement.literal.text
        if direction == "NE":
            return "nan" if test.operands[0] == test.operands[1] and text == "nan" else ""
        zero = self.at(test.operands[1])
        zeros = ("0", "0.0", "0.")
        is_zero = zero.literal is not None and zero.literal.text in zeros and text in zeros
        return "zero" if direction == "EQ" and is_zero else ""
