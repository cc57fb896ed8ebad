"""A form: one instruction whose operands, result and attributes follow from a few sizes."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tools.conformance.case import Case, Input, module_text, scalar_region, shape_text


@dataclass(frozen=True, slots=True)
class Instruction:
    """The one instruction of a module, on parameters."""

    opcode: str
    inputs: tuple[Input, ...]
    result: str
    attributes: str = ""
    regions: str = ""
    before: str = ""
    """Statements between the parameters and the root."""
    operands: str = ""
    """What stands in the parentheses where that is not the parameters."""
    random: bool = False
    """Whether only the shape of the result is settled."""


Form = Callable[..., Instruction]
"""Takes an element type, and sizes as keywords whose defaults are those of the plain case."""


def array(element_type: str, *sizes: int, style: str = "whole", bound: int = 0) -> Input:
    """Return one parameter; small whole numbers, so that sums in any order are equal."""
    return Input(element_type, sizes, style, bound)


def shaped(element_type: str, *sizes: int) -> str:
    """Return an array shape as text."""
    return shape_text(element_type, sizes)


def combiner_region(opcode: str, element_type: str) -> str:
    """Return the computation `combine`; "assign" takes the second of its two scalars."""
    if opcode == "assign":
        return (
            f"combine {{\n  a = {element_type}[] parameter(0)\n"
            f"  ROOT b = {element_type}[] parameter(1)\n}}\n\n"
        )
    return scalar_region("combine", opcode, element_type)


def sizes_of(form: Form) -> dict[str, int]:
    """Return the sizes that a form takes, with their defaults."""
    found: dict[str, int] = {}
    for name, parameter in inspect.signature(form).parameters.items():
        if isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
            found[name] = parameter.default
    return found


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
    made = form(element_type, **sizes)
    names = made.operands or ", ".join(f"p{i}" for i in range(len(made.inputs)))
    tail = f", {made.attributes}" if made.attributes else ""
    root = f"{made.result} {made.opcode}({names}){tail}"
    text = module_text(made.inputs, root, made.regions, made.before)
    variant = f"{name_of(form)}: " + ",".join(f"{k}={v}" for k, v in sizes.items())
    return Case(
        made.opcode,
        element_type,
        variant.strip(),
        text,
        made.inputs,
        judged="shapes" if made.random else "values",
    )
