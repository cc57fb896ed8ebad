"""Values, inputs, shapes, and how they are written."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.fuzz_programs.facts import AnyFacts, Facts, UntameError, full_range

MOST_ELEMENTS = 600


class Value(NamedTuple):
    """One instruction's result."""

    position: int
    name: str
    opcode: str
    shape: Shape
    facts: AnyFacts

    @property
    def array(self) -> ArrayShape:
        """The shape of a value known to be an array."""
        assert isinstance(self.shape, ArrayShape)
        return self.shape

    @property
    def type(self) -> str:
        """The element type's name."""
        return self.array.element_type.name

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.array.dimensions

    @property
    def known(self) -> Facts:
        """The facts of an array."""
        assert isinstance(self.facts, Facts)
        return self.facts


@dataclass(frozen=True, slots=True)
class Input:
    """How an entry parameter is drawn: multiples of the facts' grain within their interval."""

    element_type: str
    sizes: tuple[int, ...]
    facts: Facts


def array_shape(element_type: str, sizes: Sequence[int]) -> ArrayShape:
    """Return an array shape; raises UntameError where it is too large to be worth the time."""
    if prod(sizes) > MOST_ELEMENTS:
        raise UntameError
    return ArrayShape(ELEMENT_TYPES[element_type], tuple(sizes))


def braces(numbers: Sequence[int]) -> str:
    """Return numbers as HLO writes them in attributes."""
    return "{" + ",".join(map(str, numbers)) + "}"


def value_text(element_type: str, value: float) -> str:
    """Return a scalar literal."""
    element = ELEMENT_TYPES[element_type]
    if element_type == "pred":
        return "true" if value else "false"
    if element.is_complex:
        return f"({value!r}, 0)"
    return repr(float(value)) if element.is_float else str(int(value))


def nested_text(words: Sequence[str], sizes: Sequence[int]) -> str:
    """Return a literal of rank 1 and more."""
    if len(sizes) == 1:
        return "{" + ", ".join(words) + "}"
    step = len(words) // sizes[0]
    rows = [nested_text(words[i * step : (i + 1) * step], sizes[1:]) for i in range(sizes[0])]
    return "{" + ", ".join(rows) + "}"


def drawn_facts(rng: random.Random, element_type: str) -> Facts:
    """Choose how numbers of a type are drawn: few bits, which stay exact long, or many."""
    element = ELEMENT_TYPES[element_type]
    if element_type == "pred":
        return full_range("pred")
    if element.is_integer:
        whole = full_range(element_type)
        if element.bits < 8 or rng.random() < 0.4:
            return whole
        return Facts(max(-9.0, whole.low), 9, 0, 1)
    if element.bits <= 8:
        return Facts(-3, 3, 0, 0.5)
    kind = rng.random()
    if kind < 0.35:
        return Facts(-4, 4, 0, 1)
    if kind < 0.6:
        return Facts(-2, 2, 0, 0.25)
    if kind < 0.7:
        return Facts(0.5, 3, 0, 0.125)
    real = {"c64": "f32", "c128": "f64"}.get(element_type, element_type)
    return Facts(-2, 2, 0, 2.0 ** (1 - min(ELEMENT_TYPES[real].mantissa_bits, 40)))
