"""Linear forms of scalar integers, followed back to constants or carried values.

A value is `constant`, or `carried + constant`, where carried names a leaf of the tuple that a loop
body or condition takes as its parameter.
"""

from collections.abc import Callable

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.frozen import dataclass

LONGEST_CHAIN = 256
"""Steps followed before giving up; printed loops need fewer than ten."""

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinearForm:
    """`constant` where `carried` is None, else the carried leaf at that path plus `constant`."""

    constant: int
    carried: Path | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A computation as called: where its parameters' values stand. A loop's own frame has none."""

    computation: Computation
    caller: "Frame | None" = None
    arguments: tuple[int, ...] = ()
    """Positions in the caller's computation, by parameter number."""


_CALLS = frozenset({"call", "fusion"})
_FORWARDING = frozenset({"copy", "bitcast", "opt-barrier", "reshape", "convert", "domain"})


def scalar_constant(instruction: Instruction) -> int | None:
    """Return the value of a scalar integer constant, None for anything else."""
    if instruction.opcode != "constant" or instruction.literal is None:
        return None
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.element_count != 1:
        return None
    if not shape.element_type.is_integer:
        return None
    if instruction.literal.array is not None:
        return int(instruction.literal.array.reshape(-1)[0])
    try:
        return int(instruction.literal.text.strip(" {}"))
    except ValueError:
        return None


def linear_form(
    module: Module,
    frame: Frame,
    position: int,
    path: Path = (),
    after: Callable[[Instruction, Path], int | None] | None = None,
) -> LinearForm | None:
    """Return the form of the leaf at `path` of an instruction's value, or None if it has none.

    Follows get-tuple-element, tuple, copies, add and subtract with one side constant, calls and
    fusions. `after`: what a leaf is after a loop of the outermost frame, if that is known.
    """
    offset = 0
    for _ in range(LONGEST_CHAIN):
        instruction = frame.computation.instructions[position]
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "get-tuple-element":
            path = (instruction.attributes.integer("index"), *path)
            position = operands[0]
        elif opcode == "tuple" and path:
            if not 0 <= path[0] < len(operands):
                return None
            position, path = operands[path[0]], path[1:]
        elif opcode in _FORWARDING and _keeps_integers(frame, instruction):
            position = operands[0]
        elif opcode == "parameter":
            if frame.caller is None:
                return LinearForm(offset, path)
            position = frame.arguments[instruction.parameter_number]
            frame = frame.caller
        elif opcode in _CALLS:
            inside = _entered(module, frame, instruction)
            if inside is None:
                return None
            frame, position = inside
        elif opcode in ("add", "subtract") and not path:
            step = _constant_side(frame, instruction)
            if step is None:
                return None
            position, change = step
            offset += change
        elif opcode == "while" and after is not None and frame.caller is None:
            last = after(instruction, path)
            return None if last is None else LinearForm(last + offset)
        else:
            value = scalar_constant(instruction)
            return None if value is None else LinearForm(value + offset)
    return None


def followed(module: Module, frame: Frame, position: int) -> tuple[Frame, int]:
    """Return where a value is made: through calls and fusions, moves, and tuples made for it."""
    path: Path = ()
    maker = frame, position
    for _ in range(LONGEST_CHAIN):
        instruction = frame.computation.instructions[position]
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "get-tuple-element":
            path = (instruction.attributes.integer("index"), *path)
            position = operands[0]
        elif opcode == "tuple" and path and 0 <= path[0] < len(operands):
            position, path = operands[path[0]], path[1:]
        elif opcode in _FORWARDING - {"convert"}:
            position = operands[0]
        elif opcode in _CALLS and (inside := _entered(module, frame, instruction)) is not None:
            frame, position = inside
        else:
            break
        if not path:
            maker = frame, position
    return maker


def _entered(module: Module, frame: Frame, instruction: Instruction) -> tuple[Frame, int] | None:
    """Return the frame of a call's or fusion's computation, and the position of its root."""
    callee = next(module.called(instruction), None)
    if callee is None or len(callee.parameters) != len(instruction.operands):
        return None
    return Frame(callee, frame, instruction.operands), callee.root


def _keeps_integers(frame: Frame, instruction: Instruction) -> bool:
    """Whether a forwarding op carries a tuple or an integer over without changing its value."""
    if instruction.opcode != "convert":
        return True
    before = frame.computation.instructions[instruction.operands[0]].shape
    after = instruction.shape
    if not isinstance(before, ArrayShape) or not isinstance(after, ArrayShape):
        return False
    a, b = before.element_type, after.element_type
    return a.is_integer and a.kind is b.kind and b.bits >= a.bits


def _constant_side(frame: Frame, instruction: Instruction) -> tuple[int, int] | None:
    """Return (position of the other operand, signed change) of an add or subtract."""
    left, right = instruction.operands
    value = _plain_constant(frame, right)
    if value is not None:
        return left, value if instruction.opcode == "add" else -value
    value = _plain_constant(frame, left)
    if value is not None and instruction.opcode == "add":
        return right, value
    return None


def _plain_constant(frame: Frame, position: int) -> int | None:
    """Return the constant at a position, through copies and parameters of calls, without adds."""
    for _ in range(LONGEST_CHAIN):
        instruction = frame.computation.instructions[position]
        if instruction.opcode in _FORWARDING and _keeps_integers(frame, instruction):
            position = instruction.operands[0]
        elif instruction.opcode == "parameter" and frame.caller is not None:
            position = frame.arguments[instruction.parameter_number]
            frame = frame.caller
        else:
            return scalar_constant(instruction)
    return None
