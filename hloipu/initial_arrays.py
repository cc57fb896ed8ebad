"""Initial state and constants of a session, from files or at random."""

from collections.abc import Collection, Mapping
from typing import Any

from hloipu.inputs import flat, parameter_leaves, stored_arrays
from hloipu.ports import without_tokens
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of, seen_by_users


def constant_numbers(program: Program) -> list[int]:
    """Return the numbers of the parameters that are loaded once a session."""
    return [number_of(port) for port in seen_by_users(program).parameters]


def needed_arrays(program: Program) -> dict[int, tuple[str, ArrayShape]]:
    """Return name and shape of all that a session begins with, by number of the parameter."""
    user_view = seen_by_users(program)
    needed = {
        number_of(port): (port.stream, ArrayShape(ELEMENT_TYPES[port.element_type], port.shape))
        for port in user_view.parameters
    }
    for state in user_view.state:
        if state.parameter >= 0:
            shape = ArrayShape(ELEMENT_TYPES[state.element_type], state.shape)
            needed[state.parameter] = (state.name, shape)
    return dict(sorted(needed.items()))


def read_arrays(
    path: str, program: Program, module: Module | None, apart: Collection[int] = ()
) -> dict[int, Any]:
    """Read them from an .npz file: by name of the state or of the parameter, by path, or as in_N.

    But for those `apart`, by number, which are given otherwise.

    One for each replica where an array has one more dimension, the first.

    Raises UsageError E3107 where one is missing, E3108 where the file cannot be read.
    """
    parameter_names = (
        [name for name, shape in parameter_leaves(module) if shape.element_type.is_array]
        if module is not None
        else []
    )
    needed = {n: named for n, named in needed_arrays(program).items() if n not in apart}
    path_by_number = (
        {} if module is None else {array.number: array.name for array in parameter_arrays(module)}
    )
    names = [
        [
            name,
            f"in_{number}",
            *parameter_names[number : number + 1],
            path_by_number.get(number, name),
        ]
        for number, (name, _) in needed.items()
    ]
    shapes = [shape for _, shape in needed.values()]
    arrays: dict[int, Any] = {}
    with stored_arrays(path) as stored:
        keys = stored.keys_of(names, shapes, list(needed))
        for key, (number, (name, shape)) in zip(keys, needed.items(), strict=True):
            if program.replicas > 1 and stored.shape(key) == (program.replicas, *shape.dimensions):
                shape = ArrayShape(shape.element_type, stored.shape(key))
            arrays[number] = stored.leaf(key, shape, f"parameter {number} {name!r}")
    return arrays


def random_arrays(seed: int, program: Program, module: Module | None) -> dict[int, Any]:
    """Draw them: as `--random` draws all of a module's arguments, where there is a module."""
    needed = needed_arrays(program)
    if module is not None:
        leaves = without_tokens(module, flat(random_arguments(module, seed)))
        return {number: leaves[number] for number in needed}
    drawn = flat(random_arguments(_module_taking(needed, program.name), seed))
    return dict(zip(needed, drawn, strict=True))


def _module_taking(needed: Mapping[int, tuple[str, ArrayShape]], name: str) -> Module:
    parameters = tuple(
        Instruction(parameter_name, "parameter", shape, parameter_number=number)
        for number, (parameter_name, shape) in enumerate(needed.values())
    )
    shape = TupleShape(tuple(instruction.shape for instruction in parameters))
    root = Instruction("results", "tuple", shape, tuple(range(len(parameters))))
    return Module(name, (Computation("entry", (*parameters, root), len(parameters)),), 0)
