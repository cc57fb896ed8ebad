"""A form: one instruction whose operands, result and attributes follow from a few sizes."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tests.support.texts_rows import Row, computations_made, row
from tools.conformance.case import Case, Input, module_text


@dataclass(frozen=True, slots=True)
class Instruction:
    """The one instruction of a module, on parameters."""

    row: Row
    """Behind an operand's shape there may be the style of its values, and a bound: `indices:5`."""
    regions: str = ""
    before: str = ""
    """Statements between the parameters and the root."""
    operands: str | None = None
    """What stands in the parentheses where that is not the parameters."""
    random: bool = False
    """Whether only the shape of the result is settled."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The parameters: small whole numbers where no style is given, so that any sum is exact."""
        return tuple(_input(operand) for operand in self.row.operands)


Form = Callable[..., Instruction]
"""Takes an element type, and sizes as keywords whose defaults are those of the plain case."""


def instruction(
    text: str,
    regions: str = "",
    before: str = "",
    operands: str | None = None,
    *,
    random: bool = False,
) -> Instruction:
    """Return the instruction of a row as `texts_rows` describes them."""
    return Instruction(row(text), regions, before, operands, random)


def _input(operand: str) -> Input:
    shape, _, style = operand.partition(" ")
    element_type, _, sizes = shape.rstrip("]").partition("[")
    style, _, bound = style.partition(":")
    dimensions = tuple(int(size) for size in sizes.split(",") if size)
    return Input(element_type, dimensions, style or "whole", int(bound or 0))


def over(form: Form, **options: tuple[str, ...]) -> Iterator[Form]:
    """Yield a form with each combination of its options."""
    for values in product(*options.values()):
        yield partial(form, **dict(zip(options, values, strict=True)))


def sizes_of(form: Form) -> dict[str, int]:
    """Return the sizes that a form takes, with their defaults."""
    sizes: dict[str, int] = {}
    for name, parameter in inspect.signature(form).parameters.items():
        if isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
            sizes[name] = parameter.default
    return sizes


def drawn_sizes(form: Form, scale: int = 1) -> Iterator[dict[str, int]]:
    """Yield the plain sizes, times `scale`; then each of them zero in turn; then all zero."""
    plain = {name: scale * size for name, size in sizes_of(form).items()}
    yield plain
    for name in plain:
        yield {**plain, name: 0}
    if len(plain) > 1:
        yield dict.fromkeys(plain, 0)


def name_of(form: Form) -> str:
    """Return what a form is called, with what was bound of it."""
    bound = getattr(form, "keywords", {})
    inner: Any = getattr(form, "func", form)
    return "-".join([inner.__name__, *(str(x) for x in bound.values())])


def case_of(form: Form, element_type: str, sizes: dict[str, int]) -> Case:
    """Return the module of a form with these sizes, and what to feed it."""
    filled = form(element_type, **sizes)
    inputs, opcode = filled.inputs, filled.row.opcode
    names = ", ".join(f"p{i}" for i in range(len(inputs)))
    inside = names if filled.operands is None else filled.operands
    tail = "".join(f", {attribute}" for attribute in filled.row.attributes)
    regions = filled.regions + "\n".join([*computations_made(tail), ""])
    text = module_text(
        inputs, f"{filled.row.shape} {opcode}({inside}){tail}", regions, filled.before
    )
    variant = f"{name_of(form)}: " + ",".join(f"{k}={v}" for k, v in sizes.items())
    judged = "shapes" if filled.random else "values"
    return Case(opcode, element_type, variant.strip(), text, inputs, judged=judged)
