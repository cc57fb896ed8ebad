"""How much of a tile's memory is taken at each instruction, before anything has a place.

Each value takes memory from its instruction to its last reader, spread over all tiles evenly. What
is left is what a product may take for parts of its operands and of its result.
"""

from hloipu_compiler.codegen.site import leaves_of
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over

_FORWARDING = frozenset(
    "tuple get-tuple-element bitcast reshape copy opt-barrier broadcast domain add-dependency"
    " after-all".split()
)
"""Ops whose result is their operand, or waits for its reader; it takes no memory of its own."""


def live_bytes(computation: Computation) -> list[int]:
    """Return the bytes that are alive while each instruction runs, its own result left out."""
    instructions = computation.instructions
    ends = [-1] * len(instructions)
    ends[computation.root] = len(instructions)
    for position in range(len(instructions) - 1, -1, -1):
        x = instructions[position]
        end = ends[position] if x.opcode in _FORWARDING else position
        if ends[position] < 0:
            # Nobody reads it; what it reads ends with it.
            end = position
        for operand in x.operands:
            ends[operand] = max(ends[operand], end)
    changes = [0] * (len(instructions) + 2)
    for position, (x, end) in enumerate(zip(instructions, ends, strict=True)):
        if x.opcode in _FORWARDING or end < 0:
            continue
        size = _bytes(x)
        begin = 0 if x.parameter_number >= 0 else position + 1
        changes[begin] += size
        changes[max(begin, end + 1)] -= size
    found, alive = [], 0
    for change in changes[: len(instructions)]:
        alive += change
        found.append(alive)
    return found


def _bytes(x: Instruction) -> int:
    """Return the bytes of an instruction's result; scalars take next to none."""
    total = 0
    for shape in leaves_of(x.shape):
        if isinstance(shape, ArrayShape) and shape.dimensions:
            count = 1
            for size in shape.dimensions:
                count *= size
            total += over(count * ELEMENT_TYPES[shape.element_type.name].bits, 8)
    return total
