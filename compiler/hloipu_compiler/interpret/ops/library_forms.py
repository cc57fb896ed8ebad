"""Supported library calls: their attributes and shapes."""

import re
from collections.abc import Sequence

from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import Shape
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.linear_algebra.lapack_forms import require_lapack_form


def require_library_form(instruction: Instruction, operands: Sequence[Shape]) -> None:
    """Raise UnsupportedError E0464 where a library call's shapes are not what its target takes.

    Raises UsageError E0458 for attributes that cannot be read.
    """
    operand_leaves = [leaf for shape in operands for leaf in array_leaves(shape)]
    results = array_leaves(instruction.shape)
    target = instruction.attributes.text("custom_call_target")
    try:
        require_lapack_form(
            target,
            typed_attributes(instruction.backend_config),
            [(leaf.element_type.name, leaf.dimensions) for leaf in operand_leaves],
            [(leaf.element_type.name, leaf.dimensions) for leaf in results],
        )
    except UnsupportedError as error:
        message = f"custom call {instruction.name!r}: {error.message}"
        raise UnsupportedError(error.code, message, hint=error.hint) from error


_ENTRY = re.compile(
    r"\s*([\w.\-]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|-?[\d.]+(?:e[+-]?\d+)?|true|false|[^,{}]+?)"
    r"(?:\s*:\s*(\w+))?\s*(?:,|$)"
)


def typed_attributes(text: str) -> dict[str, object]:
    """Return the entries of an MLIR attribute dictionary such as `{mode = 65 : ui8, n = "x"}`.

    Entries of other forms are kept as text.
    """
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return {}
    value_by_key: dict[str, object] = {}
    for key, value, kind in _ENTRY.findall(inner[1:-1]):
        value_by_key[key] = _attribute_value(value, kind)
    return value_by_key


def _attribute_value(value: str, kind: str) -> object:
    if value.startswith('"'):
        return value[1:-1]
    if value in ("true", "false"):
        return value == "true"
    try:
        return float(value) if kind.startswith(("f", "bf")) else int(value)
    except ValueError:
        return value
