"""A library's custom call as formulas read it: operands, results, attributes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hloipu_compiler.formulas.text import Text, Value
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    read_backend_config,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.printing.attribute_text import value_text
from hloipu_compiler.interpret.ops.routine_forms import typed_attributes
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS as KINDS
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.errors import UnsupportedError


class FormulaError(UnsupportedError):
    """A vendor's custom call without meaning here, or whose attributes and shapes do not fit.

    `span` is its place, where the text has it.
    """

    def __init__(
        self, code: str, message: str, *, hint: str, module: Module, instruction: Instruction
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.span = module.span(instruction)


Array = tuple[str, tuple[int, ...]]
"""Element type and sizes."""
Formula = Callable[["Call"], Sequence[Value]]

_BETWEEN = re.compile("[,x]")
"""What stands between the numbers of a list in a call's line."""
FORMULAS: dict[str, Formula] = {}
"""Target -> what it computes."""


def formula(*targets: str) -> Callable[[Formula], Formula]:
    """Register what some targets compute."""

    def keep(registered: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(targets, registered))
        return registered

    return keep


@dataclass(frozen=True, slots=True)
class Call:
    """One custom call. `attributes`: its attributes, in whichever spelling."""

    module: Module
    instruction: Instruction
    target: str
    text: Text
    operands: tuple[Value, ...]
    results: tuple[Array, ...]
    attributes: Mapping[str, Any]

    def wrong(self, fault: str, hint: str = "") -> FormulaError:
        """Return the error of a call whose attributes or shapes do not fit."""
        return self._error("E0531", fault, hint or "print the module again, or correct the call")

    def unsupported(self, fault: str, hint: str) -> FormulaError:
        """Return the error of a call that hloipu has no formula for."""
        return self._error("E0530", fault, hint)

    def _error(self, code: str, fault: str, hint: str) -> FormulaError:
        message = f"custom call {self.instruction.name!r} ({self.target}): {fault}"
        return FormulaError(
            code, message, hint=hint, module=self.module, instruction=self.instruction
        )

    def takes(self, *counts: int) -> tuple[Value, ...]:
        """Return the operands; FormulaError unless their number is one of `counts`."""
        if len(self.operands) not in counts:
            wanted = " or ".join(map(str, counts))
            raise self.wrong(f"it has {len(self.operands)} operands, and takes {wanted}")
        return self.operands

    def workspaces(self, first: int) -> list[Value]:
        """Return zeros for the results from one on, which are to be bytes that nobody reads."""
        spare = self.results[first:]
        self.need(all(kind in ("s8", "u8") for kind, _ in spare), "it has another result")
        return [self.text.full(kind, dims, 0) for kind, dims in spare]

    def alike(self, *values: Value) -> None:
        """Raise unless some operands have one shape and type."""
        for value in values[1:]:
            if (value.kind, value.dims) != (values[0].kind, values[0].dims):
                raise self.wrong("its operands differ in shape")

    def need(self, is_so: bool, fault: str) -> None:
        """Raise where something that must hold does not."""
        if not is_so:
            raise self.wrong(fault)

    # -- attributes --------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether an attribute is there."""
        return key in self.attributes

    def number(self, key: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        value = self.attributes.get(key, default)
        try:
            if isinstance(value, bool) or value is None:
                raise ValueError
            return float(value)
        except (TypeError, ValueError) as error:
            raise self._missing(key, "a number") from error

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""
        value = self.number(key, default)
        if value != int(value):
            raise self._missing(key, "a whole number")
        return int(value)

    def axis(self, key: str, rank: int) -> int:
        """Return an attribute that is a dimension; negative: from the end."""
        value = self.integer(key)
        if not -rank <= value < rank:
            raise self.wrong(f"{key} is {value}, and there are {rank} dimensions")
        return value % rank

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return an attribute that is true or false."""
        value = self.attributes.get(key, default)
        words = {"true": True, "1": True, "false": False, "0": False}
        if isinstance(value, bool):
            return value
        value_of_word = words.get(str(value).lower())
        if value_of_word is None:
            raise self._missing(key, "true or false")
        return value_of_word

    def word(self, key: str, *allowed: str, default: str | None = None) -> str:
        """Return an attribute that is one of some words."""
        value = self.attributes.get(key, default)
        if value not in allowed:
            raise self._missing(key, f"one of {', '.join(allowed)}")
        return str(value)

    def integers(self, key: str) -> list[int]:
        """Return an attribute that is a list of whole numbers."""
        value = self.attributes.get(key)
        if isinstance(value, str):
            value = [part for part in _BETWEEN.split(value.strip("{} ")) if part.strip()]
        try:
            if not isinstance(value, list):
                raise ValueError
            return [int(part) for part in value]
        except (TypeError, ValueError) as error:
            raise self._missing(key, "a list of whole numbers") from error

    @property
    def configuration(self) -> str:
        """The call's configuration as it stands there, for libraries that write no object."""
        return read_backend_config(self.instruction.backend_config).strip().strip('"')

    def attributes_of_mhlo(self) -> "Call":
        """Return the call with the attributes of the MLIR op that it stands for."""
        marks = read_frontend_attributes(
            str(self.instruction.attributes.get("frontend_attributes", ""))
        )
        attributes = typed_attributes(marks.get("mhlo.attributes", ""))
        return replace(self, attributes={**self.attributes, **attributes})

    def section(self, key: str) -> "Call":
        """Return the call with the attributes that one of its attributes holds; none: nothing."""
        section = self.attributes.get(key, {})
        if not isinstance(section, Mapping):
            raise self._missing(key, "an object")
        return replace(self, attributes=section)

    def _missing(self, key: str, expected: str) -> FormulaError:
        fault = f"is {str(self.attributes[key])[:40]!r}" if key in self.attributes else "is missing"
        return self.wrong(
            f"its attribute {key} {fault}, and is to be {expected}",
            f'write it into backend_config, as {{"{key}": …}}',
        )


def attributes_of(instruction: Instruction) -> Mapping[str, Any]:
    """Return the attributes of a custom call: those of its line, and of its configuration."""
    attributes = {
        key.replace("-", "_").lower(): value
        if isinstance(value, str)
        else value_text(key, KINDS.get(key), value, str, str)
        for key, value in instruction.attributes.items()
    }
    if not instruction.backend_config:
        return attributes
    text = read_backend_config(instruction.backend_config)
    try:
        parsed = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return attributes | typed_attributes(text)
    return attributes | parsed if isinstance(parsed, dict) else attributes


def arrays_of(shape: Shape) -> tuple[Array, ...]:
    """Return the arrays of a shape, tuples flattened."""
    if isinstance(shape, TupleShape):
        return tuple(array for part in shape.elements for array in arrays_of(part))
    if isinstance(shape, ArrayShape):
        return ((shape.element_type.name, tuple(shape.dimensions)),)
    return ()
