"""A conformance case: one module of one op, what to feed it, and how to judge what comes out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from hloipu_runtime.element_types import ELEMENT_TYPES

Dimensions = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """One entry parameter and the style in which its values are drawn (`values.STYLES`)."""

    element_type: str
    dimensions: Dimensions
    style: str = "edges"
    bound: int = 0
    """For style "indices": the values lie in [-2, bound + 2); for "below" in [0, bound)."""

    @property
    def shape(self) -> str:
        """The shape as HLO text."""
        return shape_text(self.element_type, self.dimensions)


@dataclass(frozen=True, slots=True)
class Case:
    """One module with its inputs; `opcode` and `element_type` say which row of the table it is."""

    opcode: str
    element_type: str
    variant: str
    text: str
    inputs: tuple[Input, ...]
    terms: int = 1
    """Length of the longest sum behind one element."""
    combiner: str | None = "add"
    """Opcode of the region of ops that take one."""
    summed: tuple[int, ...] | None = None
    """Inputs whose absolute values make the terms of sums; None: no sum is in the op."""
    normwise: bool = False
    """Whether errors are measured against the result's largest element."""
    operand_type: str | None = None
    replicas: int = 1
    partitions: int = 1
    judged: str = "values"
    """"values", or the name of a property in `judge.PROPERTIES`."""
    tags: frozenset[str] = field(default_factory=frozenset)

    @property
    def name(self) -> str:
        """A name that no other case has."""
        return f"{self.opcode}/{self.element_type}/{self.variant}"

    @property
    def participants(self) -> int:
        """How many devices take part."""
        return self.replicas * self.partitions


def shape_text(element_type: str, dimensions: Sequence[int]) -> str:
    """Return an array shape as HLO text."""
    return f"{element_type}[{','.join(map(str, dimensions))}]"


def braces(numbers: Sequence[int]) -> str:
    """Return numbers as HLO writes them in attributes."""
    return "{" + ",".join(map(str, numbers)) + "}"


def module_text(
    inputs: Sequence[Input], root: str, regions: str = "", before: str = "", header: str = ""
) -> str:
    """Return a module whose parameters are p0, p1… and whose root is `root`, `shape op(…)…`."""
    lines = [f"  p{i} = {x.shape} parameter({i})" for i, x in enumerate(inputs)]
    body = "\n".join([*lines, *([before.rstrip("\n")] if before else []), f"  ROOT r = {root}"])
    return f"HloModule m{header}\n\n{regions}ENTRY main {{\n{body}\n}}\n"


def of_one_op(
    opcode: str,
    inputs: Sequence[Input],
    result: str,
    attributes: str = "",
    *,
    element_type: str = "",
    variant: str = "",
    regions: str = "",
    header: str = "",
    **judged: object,
) -> Case:
    """Return the case of one instruction on parameters; `variant` gains the operand shapes."""
    names = ", ".join(f"p{i}" for i in range(len(inputs)))
    tail = f", {attributes}" if attributes else ""
    text = module_text(inputs, f"{result} {opcode}({names}){tail}", regions, header=header)
    shapes = "_".join(x.shape for x in inputs) or result
    return Case(
        opcode,
        element_type or inputs[0].element_type,
        f"{variant} {shapes}".strip(),
        text,
        tuple(inputs),
        **judged,  # type: ignore[arg-type]
    )


def scalar_region(name: str, opcode: str, element_type: str, attributes: str = "") -> str:
    """Return a computation of two scalars that is one op."""
    result = "pred" if opcode == "compare" else element_type
    return (
        f"{name} {{\n  a = {element_type}[] parameter(0)\n  b = {element_type}[] parameter(1)\n"
        f"  ROOT c = {result}[] {opcode}(a, b){attributes}\n}}\n\n"
    )


_FLOAT_SHAPE = re.compile(r"\b(bf16|f16|f32|f8e\w+|f4e\w+|f6e\w+)\[")


def widened(text: str) -> str:
    """Return a module computing in f64 what the given one computes in its own types."""
    return _FLOAT_SHAPE.sub("f64[", text).replace("c64[", "c128[")


def wide_type(element_type: str) -> str:
    """Return the type that `widened` puts in an element type's place."""
    element = ELEMENT_TYPES[element_type]
    return "c128" if element.is_complex else "f64" if element.is_float else element_type


def element_count(dimensions: Sequence[int]) -> int:
    """Return the number of elements of an array."""
    return prod(dimensions)
