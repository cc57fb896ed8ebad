"""Supported library calls: their attributes and shapes."""

import re
from collections.abc import Sequence

from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.linear_algebra.lapack_forms import require_lapack_form

TOP_K = "TopK"
"""JAX's call for the largest elements of rows, and their places."""


def require_library_form(instruction: Instruction, operands: Sequence[Shape]) -> None:
    """Raise UnsupportedError E0464 where a library call's shapes are not what its target takes.

    Raises UsageError E0458 for attributes that cannot be read.
    """
    operand_leaves = [leaf for shape in operands for leaf in array_leaves(shape)]
    results = array_leaves(instruction.shape)
    target = instruction.attributes.text("custom_call_target")
    if target == TOP_K:
        _require_top_k(instruction, operand_leaves, results)
        return
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


def _require_top_k(
    instruction: Instruction, operands: Sequence[ArrayShape], results: Sequence[ArrayShape]
) -> None:
    source = operands[0] if len(operands) == 1 else None
    if source is not None and source.dimensions and not source.element_type.is_complex:
        element_type, rows, length = source.element_type, source.dimensions[:-1], source.dimensions
        fits = [
            shape.dimensions[:-1] == rows
            and len(shape.dimensions) == len(length)
            and shape.dimensions[-1] <= length[-1]
            for shape in results
        ]
        kinds = [shape.element_type.name for shape in results]
        same = len({shape.dimensions for shape in results}) == 1
        if fits == [True, True] and same and kinds == [element_type.name, "s32"]:
            return
    raise UnsupportedError(
        "E0464",
        f"custom call {instruction.name!r}: {TOP_K} of "
        f"{', '.join(map(_plain, operands)) or 'nothing'} "
        f"cannot give ({', '.join(map(_plain, results))})",
        hint="it takes one array of real numbers and gives at most as many of each row, with "
        "their places in s32",
    )


def _plain(shape: ArrayShape) -> str:
    return str(shape.without_layout())


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
