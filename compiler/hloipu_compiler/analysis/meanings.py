"""Find operations that no kernel supports for their element types, before anything runs.

XLA's verifier lets some of them pass, such as shifts of floats and a maximum of complex numbers.
"""

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.elementwise.binary import binary_has_meaning
from hloipu_runtime.kernels.elementwise.unary import unary_has_meaning

_BY_OTHER_KERNELS = frozenset("convert stochastic-convert reduce-precision select".split())
"""Elementwise operations that `unary.py` and `binary.py` of the kernels do not compute."""
_UNARY, _BINARY = 1, 2
_MOST_BITS = 64
"""Of an element whose bits kernels handle as an integer."""


def require_meanings(module: Module) -> None:
    """Raise UnsupportedError E0457 for the first operation without a meaning for its types."""
    for computation in callees_first(module, only_reachable=True):
        for instruction in computation.instructions:
            fault = _fault(computation, instruction)
            if fault:
                error = UnsupportedError(
                    "E0457",
                    f"instruction {instruction.name!r}: {fault}",
                    hint="convert the operands to a type that the operation is defined for",
                )
                error.span = module.span(instruction)
                raise error


def _fault(computation: Computation, instruction: Instruction) -> str:
    """Return what is wrong with the types of an instruction, or nothing."""
    if not instruction.operands:
        return ""
    operand = computation.instructions[instruction.operands[0]].shape
    if not isinstance(operand, ArrayShape):
        return ""
    element_type = operand.element_type.name
    if instruction.opcode == "clamp":
        defined = all(binary_has_meaning(name, element_type) for name in ("maximum", "minimum"))
    elif instruction.opcode == "compare":
        equality = instruction.attributes.text("direction") in ("EQ", "NE")
        defined = equality or not operand.element_type.is_complex
    elif instruction.opcode == "topk":
        defined = not operand.element_type.is_complex
    elif instruction.opcode in _BY_OTHER_KERNELS:
        defined = True
    elif instruction.opcode in ELEMENTWISE and len(instruction.operands) == _UNARY:
        defined = unary_has_meaning(instruction.opcode, element_type)
    elif instruction.opcode in ELEMENTWISE and len(instruction.operands) == _BINARY:
        defined = binary_has_meaning(instruction.opcode, element_type)
    elif instruction.opcode == "rng":
        defined = operand.element_type.is_integer or operand.element_type.is_float
    elif instruction.opcode == "rng-bit-generator":
        return _generator_fault(instruction, operand)
    elif instruction.opcode == "bitcast-convert":
        return _reading_fault(instruction, element_type)
    else:
        defined = True
    return "" if defined else f"{instruction.opcode} of {element_type} has no meaning"


def _generator_fault(instruction: Instruction, state: ArrayShape) -> str:
    """Return why bits of a type cannot be drawn from a state, or nothing."""
    bits = (
        instruction.shape.elements[-1]
        if isinstance(instruction.shape, TupleShape)
        else instruction.shape
    )
    algorithm = instruction.attributes.text("algorithm").lower()
    words = state.element_count * state.element_type.bits // 64
    from hloipu_runtime.kernels.random_bits import states_of

    allowed = states_of(algorithm)
    if state.element_type.name not in ("u32", "u64") or words not in allowed:
        sizes = " or ".join(f"u64[{count}]" for count in allowed)
        return f"{algorithm} has no state {state.without_layout()}, it takes {sizes}"
    if not isinstance(bits, ArrayShape) or bits.element_type.bits <= _MOST_BITS:
        return ""
    kind = bits.element_type.name
    return f"{instruction.opcode} makes at most {_MOST_BITS} bits an element, no {kind}"


def _reading_fault(instruction: Instruction, element_type: str) -> str:
    """Return why bits of one type cannot be read as another, or nothing."""
    if (
        not isinstance(instruction.shape, ArrayShape)
        or instruction.shape.element_type.name == element_type
    ):
        return ""
    source, target = ELEMENT_TYPES[element_type].bits, instruction.shape.element_type.bits
    if max(source, target) <= _MOST_BITS and max(source, target) % min(source, target) == 0:
        return ""
    return (
        f"the {source} bits of {element_type} cannot be read as "
        f"{instruction.shape.element_type.name} of {target} bits"
    )
