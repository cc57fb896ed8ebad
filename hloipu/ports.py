"""Map a module's arguments to its program's."""

from collections.abc import Sequence

from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import seen_by_users


def module_of_ports(program: Program) -> Module:
    """Return a module that takes a program's parameters, named as its streams, and no more."""
    parameters = tuple(
        Instruction(
            port.stream,
            "parameter",
            ArrayShape(ELEMENT_TYPES[port.element_type], port.shape),
            parameter_number=number,
        )
        for number, port in enumerate(seen_by_users(program).parameters)
    )
    shape = TupleShape(tuple(instruction.shape for instruction in parameters))
    root = Instruction("results", "tuple", shape, tuple(range(len(parameters))))
    entry = Computation("entry", (*parameters, root), len(parameters))
    return Module(program.name, (entry,), 0)


def without_tokens(module: Module, leaves: Sequence[Array]) -> list[Array]:
    """Return the leaves of arguments that a program takes: tokens stay with the host."""
    shapes = [
        leaf for shape in module.entry.program_shape.parameters for leaf in array_leaves(shape)
    ]
    return [
        array
        for array, shape in zip(leaves, shapes, strict=True)
        if shape.element_type.name != "token"
    ]
