"""Calls of library routines: LAPACK by its forms, custom calls of other backends by skeletons."""

import re
from collections.abc import Sequence

from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.linear_algebra.lapack_forms import require_lapack_form
from hloipu_runtime.plain_text import printable


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


_MOST_ARRAYS = 64
"""Operands and results that a message shows."""


def _quoted(word: str) -> str:
    """Return one word of a shell."""
    return "'" + word.replace("'", "'\\''") + "'"


def how_to_define(target: str, operands: Sequence[Shape], result: Shape) -> str:
    """Return the hint of an error: which options say what a target computes, and a text for them.

    The text is a whole module, which gives zeros.
    """
    # Copied to a shell it stays one word, whatever the module calls it.
    file, cycles = (
        _quoted(f"{printable(target)}={placeholder}") for placeholder in ("FILE.hlo", "CYCLES")
    )
    advice = (
        f"say what it computes: --define {file}, in Python define={{{target!r}: …}}, "
        f"or for an estimate how long it takes: --opaque {cycles}"
    )
    text = _skeleton([x for shape in operands for x in _arrays(shape)], _arrays(result))
    if not text:
        return advice
    return f"{advice}; FILE.hlo to begin with, whose zeros are to be replaced:\n\n{text}"


def _skeleton(operands: Sequence[ArrayShape], results: Sequence[ArrayShape]) -> str:
    if not results or len(operands) + len(results) > _MOST_ARRAYS:
        return ""
    lines = [f"p{n} = {_shape(shape)} parameter({n})" for n, shape in enumerate(operands)]
    for n, x in enumerate(results):
        kind = x.element_type.name
        lines.append(f"zero{n} = {kind}[] constant({_ZEROS.get(kind, 0)})")
        lines.append(f"r{n} = {_shape(x)} broadcast(zero{n}), dimensions={{}}")
    names = ", ".join(f"r{n}" for n in range(len(results)))
    shapes = ", ".join(_shape(shape) for shape in results)
    lines.append(f"ROOT results = ({shapes}) tuple({names})")
    body = "".join(f"  {line}\n" for line in lines)
    return f"HloModule definition\n\nENTRY main {{\n{body}}}\n"


_ZEROS = {"pred": "false", "c64": "(0, 0)", "c128": "(0, 0)"}


def _shape(x: ArrayShape) -> str:
    return f"{x.element_type.name}[{','.join(map(str, x.dimensions))}]"


def _arrays(shape: Shape) -> list[ArrayShape]:
    if isinstance(shape, TupleShape):
        return [x for part in shape.elements for x in _arrays(part)]
    return [shape] if isinstance(shape, ArrayShape) and shape.element_type.is_array else []
