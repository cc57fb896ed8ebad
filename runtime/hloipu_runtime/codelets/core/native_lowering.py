"""Takes an expression apart: instructions of compiled kernels, and steps that numpy does.

Instructions are what numpy and a compiled kernel do alike, bit for bit. Everything else, powers and
transcendentals above all, stays one of numpy's steps; what surrounds these is cut into stages,
each one kernel.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.expression_planning import TRANSCENDENTAL
from hloipu_runtime.codelets.core.expression_steps import STEPS, Step
from hloipu_runtime.codelets.core.native_complex import complex_op
from hloipu_runtime.element_types import ELEMENT_TYPES, GRIDS
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import is_narrow
from hloipu_runtime.kernels.elementwise import binary as binary_kernels
from hloipu_runtime.kernels.elementwise import unary as unary_kernels
from hloipu_runtime.kernels.native.instructions import Instruction
from hloipu_runtime.kernels.native.text import is_known_type


class NumpyStep(NamedTuple):
    """One step that numpy does."""

    step: Step
    arguments: tuple[int, ...]
    type: str
    """Storage type of its result."""
    function: np.ufunc | None = None
    """Numpy's, if the step is a call of one."""


class Constant(NamedTuple):
    """A value that is the same for all elements."""

    value: Array
    type: str


Work = Instruction | NumpyStep | Constant


class Lowered(NamedTuple):
    """An expression in parts. Values have numbers: operands come first, parts follow."""

    operand_types: tuple[str, ...]
    """Storage types."""
    parts: tuple[Work, ...]
    results: tuple[int, ...]

    def type_of(self, number: int) -> str:
        """Return the storage type of a value."""
        count = len(self.operand_types)
        return self.operand_types[number] if number < count else self.parts[number - count].type


class _Writer:
    """The parts so far."""

    def __init__(self, expression: Expression, halves: bool) -> None:
        self.operands = tuple(map(storage_type, expression.operand_types))
        self.parts: list[Work] = []
        self.halves = halves
        self._constants: dict[tuple[str, bytes], int] = {}

    def add(self, part: Work) -> int:
        self.parts.append(part)
        return len(self.operands) + len(self.parts) - 1

    def op(self, op: str, kind: str, *arguments: int) -> int:
        return self.add(Instruction(op, arguments, kind))

    def numpy(self, step: Step, kind: str, *arguments: int, function: object = None) -> int:
        own = function if isinstance(function, np.ufunc) else None
        return self.add(NumpyStep(step, arguments, kind, own))

    def constant(self, value: Array, kind: str) -> int:
        key = (kind, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add(Constant(value, kind))
        return self._constants[key]

    def number(self, value: float, kind: str) -> int:
        return self.constant(np.asarray(value, np.dtype(ELEMENT_TYPES[kind].storage)), kind)

    def constant_of(self, number: int) -> Array | None:
        part = self.parts[number - len(self.operands)] if number >= len(self.operands) else None
        return part.value if isinstance(part, Constant) else None

    def rounded(self, number: int, element_type: str, *, of_grid: bool = False) -> int:
        """Bring an f32 value to the grid of its element type.

        `of_grid`: it is IEEE's arithmetic on numbers of that grid.
        """
        if not is_narrow(element_type):
            return number
        how = ":half" if element_type == "f16" and self.halves else ""
        if element_type == "bf16" and of_grid:
            how = ":short_nan"
        return self.op(f"round:{element_type}{how}", "f32", number)


def storage_type(element_type: str) -> str:
    """Return the element type whose arrays are the storage form of another's, or that itself."""
    return "f32" if is_narrow(element_type) else element_type


def lowered(expression: Expression, *, halves: bool) -> Lowered:
    """Return an expression in parts; `halves`: whether the processor converts f32 to f16."""
    writer = _Writer(expression, halves)
    numbers = list(range(len(expression.operand_types)))
    for node in expression.nodes:
        given = [numbers[x] for x in node.arguments]
        types = [expression.type_of(x) for x in node.arguments]
        numbers.append(_node(writer, node, given, types))
    return Lowered(
        writer.operands, tuple(writer.parts), tuple(numbers[x] for x in expression.results)
    )


def _node(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int:
    """Add a node's parts, and return the number of its value."""
    kind = storage_type(node.element_type)
    if node.op == "constant":
        return writer.constant(
            value_of(str(dict(node.parameters)["value"]), node.element_type), kind
        )
    if node.op == "copy":
        return given[0]
    every = [*types, node.element_type]
    if all(is_known_type(storage_type(x)) and x != "f8e8m0fnu" for x in every):
        write = LOWERINGS.get(node.op)
        if "c64" in every:
            made = complex_op(writer, node.op, dict(node.parameters), given)
        else:
            made = None if write is None else write(writer, node, given, types)
        if made is not None:
            return made
    step = STEPS[node.op](list(types), node.element_type, dict(node.parameters))
    return writer.numpy(step, kind, *given)


Lowering = Callable[[_Writer, Node, Sequence[int], Sequence[str]], "int | None"]
"""Adds the parts of a node; None: no instruction does the same."""


def _is_float(element_type: str) -> bool:
    return ELEMENT_TYPES[element_type].is_float


def _arithmetic(
    of_floats: str,
    of_integers: str,
    of_pred: str,
    writer: _Writer,
    node: Node,
    given: Sequence[int],
    types: Sequence[str],
) -> int | None:
    """Add an op that is one instruction for each kind of elements; "" where there is none."""
    kind = storage_type(node.element_type)
    op = of_floats if _is_float(types[0]) else of_pred if types[0] == "pred" else of_integers
    if not op:
        return None
    of_grid = all(x == node.element_type for x in types)
    return writer.rounded(writer.op(op, kind, *given), node.element_type, of_grid=of_grid)


def _extremum(
    name: str, writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    if types[0] == "pred":
        return writer.op("or" if name == "max" else "and", "pred", *given)
    kind = storage_type(node.element_type)
    if not _is_float(types[0]):
        return writer.op(f"integer_extremum:{name}", kind, *given)
    return _float_extremum(writer, name, kind, given[0], given[1])


def _float_extremum(writer: _Writer, name: str, kind: str, x: int, y: int) -> int:
    for value, other in ((x, y), (y, x)):
        constant = writer.constant_of(value)
        if constant is None or np.isnan(constant):
            continue
        if abs(constant) >= np.finfo(constant.dtype).smallest_normal:
            return writer.op(f"extremum:{name}:number", kind, other, value)
        if name == "max" and not any(constant.tobytes()):
            return writer.op("extremum:max:zero", kind, other, value)
    return writer.op(f"extremum:{name}", kind, x, y)


def _clamp(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    low, value, high = given
    kind = storage_type(node.element_type)
    if types[1] == "pred":
        return None
    if not _is_float(types[1]):
        raised = writer.op("integer_extremum:max", kind, value, low)
        return writer.op("integer_extremum:min", kind, raised, high)
    raised = _float_extremum(writer, "max", kind, value, low)
    return _float_extremum(writer, "min", kind, raised, high)


def _compare(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    from hloipu_runtime.kernels.elementwise.compare import is_own_order

    parameters = dict(node.parameters)
    op = "compare"
    if not is_own_order(str(parameters.get("type") or "") or None, types[0]):
        if not _is_float(types[0]):
            return None
        op = "compare_totally"
    return writer.op(f"{op}:{parameters['direction']}", "pred", *given)


def _select(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    return writer.op("select", storage_type(node.element_type), *given)


def _convert(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    before, after = types[0], node.element_type
    source, target = storage_type(before), storage_type(after)
    if before == after:
        return given[0]
    if before == "bf16" and after == "pred":
        return None  # looks at the bits of subnormals
    if is_narrow(after) and source == "f64":
        return None  # rounded once
    if _is_float(before) and ELEMENT_TYPES[after].is_integer:
        return writer.op("convert", target, *given)
    value = given[0] if source == target else writer.op("convert", target, *given)
    exact = before == "pred" or _holds(after, before)
    return value if exact else writer.rounded(value, after)


def _holds(wide: str, narrow: str) -> bool:
    """Whether each float of one type is one of another's, zeros, NaN and infinities too."""
    if not (_is_float(wide) and _is_float(narrow)):
        return False
    if wide in ("f32", "f64"):
        return True
    a, b = GRIDS[wide], GRIDS.get(narrow)
    return b is not None and (
        a.mantissa_bits >= b.mantissa_bits
        and a.min_exponent - a.mantissa_bits <= b.min_exponent - b.mantissa_bits
        and a.largest >= b.largest
        and wide in ("f16", "bf16")
    )


def _bitcast(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    before, after = types[0], node.element_type
    if before == after:
        return given[0]
    if is_narrow(before) or is_narrow(after) or "pred" in (before, after):
        return None
    if ELEMENT_TYPES[before].bits != ELEMENT_TYPES[after].bits:
        return None
    return writer.op("bitcast", after, *given)


def _unary(
    of_floats: str, writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    """Add an op of floats that may keep them on the grid, or one of integers; see `unary`."""
    if ELEMENT_TYPES[types[0]].is_integer and node.op in _OF_INTEGERS:
        return writer.op(_OF_INTEGERS[node.op], types[0], *given)
    if not _is_float(types[0]) or not of_floats:
        return None
    value = writer.op(of_floats, storage_type(types[0]), *given)
    if node.op in unary_kernels.ON_GRID and types[0] in ("f16", "bf16"):
        return value
    return writer.rounded(value, types[0])


_OF_INTEGERS = {
    "abs": "size", "count-leading-zeros": "leading_zeros", "negate": "negate", "popcnt": "ones",
    "sign": "integer_sign",
}  # fmt: skip


def _is_finite(
    writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    return writer.op("is_finite", "pred", *given) if _is_float(types[0]) else None


def _reciprocal_root(
    writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    kind = storage_type(types[0])
    if not _is_float(types[0]):
        return None
    root = writer.op("sqrt", kind, *given)
    return writer.rounded(writer.op("reciprocal", kind, root), types[0])


def _logistic(
    writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    kind = storage_type(types[0])
    if not _is_float(types[0]):
        return None
    power = _by_numpy(writer, "exponential", kind, writer.op("fneg", kind, *given))
    below = writer.op("fadd", kind, power, writer.number(1, kind))
    return writer.rounded(writer.op("reciprocal", kind, below), types[0])


def _erf(writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]) -> int | None:
    """Add the ops of the f32 kernel one by one, as it does them."""
    if not _is_float(types[0]) or storage_type(types[0]) != "f32":
        return None
    coefficients = [writer.number(x, "f32") for x in unary_kernels.ERF_F32]
    size = writer.op("fabs", "f32", *given)
    size = writer.op(f"clip_below:{float(np.float32(unary_kernels.ERF_F32_END))}", "f32", size)
    total = writer.op("fmul", "f32", size, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        total = writer.op("fadd", "f32", total, coefficient)
        total = writer.op("fmul", "f32", total, size)
    total = writer.op("fadd", "f32", total, coefficients[0])
    exponent = writer.op("fmul", "f32", total, writer.op("fneg", "f32", size))
    value = _by_numpy(writer, "exponential-minus-one", "f32", exponent)
    rest = writer.constant(np.array(2**31 - 1, np.int32), "s32")
    keep = writer.op("or", "s32", writer.op("bitcast", "s32", *given), rest)
    bits = writer.op("and", "s32", writer.op("bitcast", "s32", value), keep)
    return writer.rounded(writer.op("bitcast", "f32", bits), types[0])


def _by_numpy(writer: _Writer, opcode: str, kind: str, *given: int) -> int:
    """Add what numpy computes of f32 or f64, not rounded."""
    kernels = binary_kernels.REAL_KERNELS if len(given) == 2 else unary_kernels.REAL_KERNELS
    kernel: Callable[..., object] = kernels[opcode]

    def step(x: list[Array], out: Array | None) -> Array:
        out = np.empty(x[0].shape, x[0].dtype) if out is None else out
        kernel(*x[: len(given)], out)
        return out

    return writer.numpy(step, kind, *given, function=kernel)


def _transcendental(
    writer: _Writer, node: Node, given: Sequence[int], types: Sequence[str]
) -> int | None:
    """Add a step of numpy's, and rounding as an instruction."""
    if node.op == "remainder" and ELEMENT_TYPES[types[0]].is_integer:
        return writer.op("rest", types[0], *given)
    if not _is_float(types[0]):
        return None
    return writer.rounded(_by_numpy(writer, node.op, storage_type(types[0]), *given), types[0])


LOWERINGS: dict[str, Lowering] = {
    **{op: partial(_arithmetic, *names) for op, names in {
        "add": ("fadd", "add", "or"), "subtract": ("fsub", "sub", "xor"),
        "multiply": ("fmul", "mul", "and"), "divide": ("fdiv", "quotient", ""),
        "and": ("", "and", "and"), "or": ("", "or", "or"), "xor": ("", "xor", "xor"),
        "not": ("", "not", "not"),
        "shift-left": ("", "shift:shl", ""),
        "shift-right-logical": ("", "shift:lshr", ""),
        "shift-right-arithmetic": ("", "shift:ashr", ""),
    }.items()},
    **{op: partial(_unary, name) for op, name in {
        "abs": "fabs", "ceil": "ceil", "floor": "floor", "negate": "fneg",
        "round-nearest-even": "rint", "round-nearest-afz": "round_away", "sign": "sign",
        "sqrt": "sqrt", "count-leading-zeros": "", "popcnt": "",
    }.items()},
    **dict.fromkeys(sorted(TRANSCENDENTAL), _transcendental),
    "maximum": partial(_extremum, "max"),
    "minimum": partial(_extremum, "min"),
    "bitcast-convert": _bitcast,
    "clamp": _clamp,
    "compare": _compare,
    "convert": _convert,
    "erf": _erf,
    "is-finite": _is_finite,
    "logistic": _logistic,
    "rsqrt": _reciprocal_root,
    "select": _select,
}  # fmt: skip
"""What stands for each opcode; the others are steps of numpy's, as they are without kernels."""
