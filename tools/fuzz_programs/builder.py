"""Writing a program down: computations that grow line by line, each value with its facts."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, with_default_layout
from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.fuzz_programs.facts import AnyFacts, Facts, Transfer, UntameError
from tools.fuzz_programs.values import (
    Input,
    Value,
    array_shape,
    braces,
    drawn_facts,
    nested_text,
    value_text,
)

MOST_DEPTH = 3
"""How deep calls, loops and branches stand in one another."""

Families = Mapping[Callable[["Body"], Value], int]
"""Family -> weight: each appends an operation of its kind to a body, or raises UntameError."""


@dataclass
class Draft:
    """A module under construction."""

    rng: random.Random
    families: Families
    """What entries, callees, branches and loop bodies are made of."""
    plain: Families
    """What fused computations are made of: no control flow."""
    scalar: Families
    """What mapped computations are made of: elementwise operations."""
    computations: list[str] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Family -> how often it was used."""
    callees: list[tuple["Body", Value]] = field(default_factory=list)
    """Called computations with their roots: they may be called again."""
    _names: int = 0

    def name(self, stem: str) -> str:
        """Return a name that nothing else has."""
        self._names += 1
        return f"{stem.replace('-', '_')}.{self._names}"


class Body:
    """A computation under construction; its values are what operations may use."""

    def __init__(self, draft: Draft, stem: str, *, depth: int = 0, is_entry: bool = False) -> None:
        self.draft = draft
        self.rng = draft.rng
        self.name = draft.name(stem)
        self.depth = depth
        self.is_entry = is_entry
        self.values: list[Value] = []
        self.used: set[int] = set()
        self._lines: list[str] = []
        self._steps: list[tuple[tuple[int, ...], Transfer]] = []
        self._parameters: list[int] = []

    # ---- lines ------------------------------------------------------------------------------
    def add(
        self,
        opcode: str,
        shape: Shape,
        operands: Sequence[Value],
        transfer: Transfer,
        attributes: str = "",
        inside: str | None = None,
    ) -> Value:
        """Append an instruction; raises UntameError, and appends nothing, where facts forbid it."""
        try:
            facts = transfer(*(v.facts for v in operands))
        except (ArithmeticError, ValueError) as error:
            raise UntameError from error
        written = ", ".join(v.name for v in operands) if inside is None else inside
        name = self.draft.name(opcode)
        tail = f", {attributes}" if attributes else ""
        text = f"{name} = {with_default_layout(shape)} {opcode}({written}){tail}"
        value = Value(len(self.values), name, opcode, shape, facts)
        self._lines.append(text)
        self._steps.append((tuple(v.position for v in operands), transfer))
        self.used.update(v.position for v in operands)
        self.values.append(value)
        return value

    def same(self, opcode: str, shape: Shape, operand: Value, attributes: str = "") -> Value:
        """Append an instruction that moves the elements of one operand."""
        return self.add(opcode, shape, [operand], lambda f: f, attributes)

    def parameter(self, shape: Shape, facts: AnyFacts) -> Value:
        """Append the next parameter."""
        number = len(self._parameters)
        value = self.add("parameter", shape, [], lambda: facts, inside=str(number))
        self._parameters.append(value.position)
        return value

    def scalar(self, element_type: str, value: float) -> Value:
        """Append a scalar constant; its grain is the largest power of two that divides it."""
        grain = 1.0
        while value % grain:
            grain /= 2
        least = 0.0 if ELEMENT_TYPES[element_type].is_complex else value
        facts = Facts(min(least, value), max(least, value), 0, grain)
        text = value_text(element_type, value)
        return self.add("constant", array_shape(element_type, ()), [], lambda: facts, inside=text)

    def filled(self, element_type: str, sizes: Sequence[int], value: float) -> Value:
        """Append an array of one number."""
        scalar = self.scalar(element_type, value)
        return self.broadcast(scalar, sizes, ()) if sizes else scalar

    def broadcast(self, value: Value, sizes: Sequence[int], dimensions: Sequence[int]) -> Value:
        """Append a broadcast; operand dimension i becomes result dimension `dimensions[i]`."""
        shape = array_shape(value.type, sizes)
        return self.same("broadcast", shape, value, f"dimensions={braces(dimensions)}")

    def tuple(self, values: Sequence[Value]) -> Value:
        """Append a tuple."""
        shape = TupleShape(tuple(v.shape for v in values))
        return self.add("tuple", shape, values, lambda *f: f)

    def element(self, value: Value, index: int) -> Value:
        """Append a get-tuple-element."""
        assert isinstance(value.shape, TupleShape)
        shape = value.shape.elements[index]
        return self.add("get-tuple-element", shape, [value], lambda f: f[index], f"index={index}")

    def elements(self, value: Value) -> list[Value]:
        """Append a get-tuple-element for each element."""
        assert isinstance(value.shape, TupleShape)
        return [self.element(value, i) for i in range(len(value.shape.elements))]

    @property
    def parameters(self) -> list[Value]:
        """The parameters, in order."""
        return [self.values[i] for i in self._parameters]

    def root(self, value: Value, *, whole: bool = False) -> bool:
        """Close the computation and put it before those that use it; dead code is left out.

        XLA:CPU ends the process on dead reductions whose regions call. With `whole`, returns False
        and writes nothing where a parameter is dead.
        """
        kept = set(self._needed(value))
        if whole and not kept.issuperset(self._parameters):
            return False
        kept.update(self._parameters)
        lines = [
            f"  ROOT {line}" if i == value.position else f"  {line}"
            for i, line in enumerate(self._lines)
            if i in kept
        ]
        word = "ENTRY " if self.is_entry else ""
        self.draft.computations.append("\n".join([f"{word}{self.name} {{", *lines, "}"]))
        return True

    def _needed(self, value: Value) -> list[int]:
        needed, stack = {value.position}, [value.position]
        while stack:
            for operand in self._steps[stack.pop()][0]:
                if operand not in needed:
                    needed.add(operand)
                    stack.append(operand)
        return sorted(needed)

    def replay(self, root: Value, arguments: Sequence[AnyFacts]) -> AnyFacts:
        """Return the root's facts for other facts of the parameters."""
        facts: list[AnyFacts] = []
        given = dict(zip(self._parameters, arguments, strict=True))
        for position, (operands, transfer) in enumerate(self._steps):
            known = given.get(position)
            facts.append(transfer(*(facts[i] for i in operands)) if known is None else known)
        return facts[root.position]

    def grow(self, count: int, families: Families | None = None) -> None:
        """Append about `count` operations of drawn families."""
        families = families or self.draft.families
        names, weights = list(families), list(families.values())
        for _ in range(3 * count):
            if count <= 0:
                return
            family = self.rng.choices(names, weights)[0]
            try:
                family(self)
            except UntameError:
                continue
            counts = self.draft.counts
            counts[family.__name__] = counts.get(family.__name__, 0) + 1
            count -= 1

    # ---- choices ----------------------------------------------------------------------------
    def arrays(self, accepts: Callable[[Value], bool] | None = None) -> Iterator[Value]:
        """Yield the arrays that may be used further."""
        for value in self.values:
            usable = isinstance(value.shape, ArrayShape) and not value.known.poor
            if usable and (accepts is None or accepts(value)):
                yield value

    def pick(self, accepts: Callable[[Value], bool] | None = None) -> Value:
        """Choose an array, rather a late one; raises UntameError where there is none."""
        candidates = list(self.arrays(accepts))
        if not candidates:
            raise UntameError
        fresh = [v for v in candidates if v.position not in self.used]
        if fresh and self.rng.random() < 0.5:
            return self.rng.choice(fresh)
        return self.rng.choice(candidates[-12:] if self.rng.random() < 0.6 else candidates)

    def pick_like(self, value: Value, accepts: Callable[[Value], bool] | None = None) -> Value:
        """Choose or make an array of the same shape and element type."""
        alike = [v for v in self.arrays(accepts) if v.shape == value.shape]
        others = [v for v in alike if v.position != value.position]
        if others and self.rng.random() < 0.8:
            return self.rng.choice(others)
        if alike and self.rng.random() < 0.15:
            return self.rng.choice(alike)
        return self.fresh(value.type, value.sizes)

    def fresh(self, element_type: str, sizes: Sequence[int], facts: Facts | None = None) -> Value:
        """Make an exact array: a parameter in the entry, else a constant."""
        facts = facts or drawn_facts(self.rng, element_type)
        if self.is_entry and self.rng.random() < 0.8 and len(self.draft.inputs) < 12:
            value = self.parameter(array_shape(element_type, sizes), facts)
            self.draft.inputs.append(Input(element_type, tuple(sizes), facts))
            return value
        return self.constant(element_type, sizes, facts)

    def constant(self, element_type: str, sizes: Sequence[int], facts: Facts) -> Value:
        """Append a constant: written out where it is small, else one number everywhere."""

        def draw() -> float:
            steps = int((facts.high - facts.low) / facts.grain)
            return facts.low + facts.grain * self.rng.randrange(min(steps, 2**40) + 1)

        if not 0 < prod(sizes) <= 24 or not sizes:
            return self.filled(element_type, sizes, draw())
        numbers = [draw() for _ in range(prod(sizes))]
        if ELEMENT_TYPES[element_type].is_complex:
            facts = Facts(min(0.0, facts.low), max(0.0, facts.high), 0, facts.grain)
        text = nested_text([value_text(element_type, x) for x in numbers], sizes)
        shape = array_shape(element_type, sizes)
        return self.add("constant", shape, [], lambda: facts, inside=text)
