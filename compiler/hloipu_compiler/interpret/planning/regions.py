"""Regions on whole arrays: reducers, comparators, combiners, mapped functions.

A computation on scalars whose ops are elementwise does not mind getting arrays: its plan is run
once on all elements. Branches inside become selects, loops run until no element goes on.
"""

import numpy as np

from hloipu_compiler.interpret.planning.plan import Array, Plan
from hloipu_compiler.interpret.planning.site import Region
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape

MONOIDS = frozenset({"add", "multiply", "minimum", "maximum", "and", "or", "xor"})


def region_function(plan: Plan) -> Region:
    """Return a lifted plan as a function on arrays that broadcast together."""

    def run(*arrays: Array) -> list[Array]:
        results = plan.run(list(arrays))
        shape = np.broadcast_shapes(*(x.shape for x in arrays)) if arrays else ()
        return [x if x.shape == shape else np.broadcast_to(x, shape) for x in results]

    return run


def monoid_of(module: Module, name: str) -> str | None:
    """Return the monoid that a reducer of two scalars is, or None.

    Seen through calls, fusions and the widening converts that backends put around half-precision
    arithmetic: accumulating wider than asked is what every backend does.
    """
    computation = module.computation[name]
    if len(computation.parameters) != 2:
        return None
    root = _behind_converts(computation, computation.instructions[computation.root])
    if root.opcode in ("call", "fusion") and len(root.operands) == 2:
        numbers = [_parameter_number(computation, x) for x in root.operands]
        inner = monoid_of(module, root.attributes.called[0]) if sorted(numbers) == [0, 1] else None
        return inner
    if root.opcode not in MONOIDS:
        return None
    numbers = [_parameter_number(computation, x) for x in root.operands]
    return root.opcode if sorted(numbers) == [0, 1] else None


def assigned_parameter(module: Module, name: str) -> int | None:
    """Return the number of the parameter that a computation returns unchanged, or None."""
    computation = module.computation[name]
    root = computation.instructions[computation.root]
    return root.parameter_number if root.opcode == "parameter" else None


def _behind_converts(computation: Computation, instruction: Instruction) -> Instruction:
    while (
        instruction.opcode == "copy"
        or is_identity(instruction)
        or _keeps_arguments(computation, instruction)
    ):
        instruction = computation.instructions[instruction.operands[0]]
    return instruction


def _keeps_arguments(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction converts between floats that both hold every argument exactly."""
    if instruction.opcode != "convert":
        return False
    arguments = [computation.instructions[i].shape for i in computation.parameters]
    types = [instruction.shape, computation.instructions[instruction.operands[0]].shape]
    return all(holds(wide, narrow) for wide in types for narrow in arguments)


def holds(wide: Shape, narrow: Shape) -> bool:
    """Whether a float type has every value of another."""
    if not (isinstance(wide, ArrayShape) and isinstance(narrow, ArrayShape)):
        return False
    a, b = wide.element_type, narrow.element_type
    return (
        a.is_float
        and b.is_float
        and a.mantissa_bits >= b.mantissa_bits
        and a.exponent_bits >= b.exponent_bits
    )


def _parameter_number(computation: Computation, position: int) -> int:
    return _behind_converts(computation, computation.instructions[position]).parameter_number
