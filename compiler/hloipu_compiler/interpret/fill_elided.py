"""Values for constants whose text was left out (`{...}`)."""

from dataclasses import replace

import numpy as np

from hloipu_compiler.interpret.input_roles import role_at
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.random_inputs import random_leaf
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.kernels.core.storage import to_storage


def fill_elided(module: Module, seed: int) -> Module:
    """Return the module with random values in place of elided array constants.

    The values suit what the constant is used for (indices in range and so on), but they are not
    the program's own: results mean nothing, only times, sizes and agreement do.
    """
    source = np.random.PCG64(seed)

    def filled(computation: Computation, position: int, instruction: Instruction) -> Instruction:
        if (
            instruction.literal is None
            or not instruction.literal.is_elided
            or not isinstance(instruction.shape, ArrayShape)
        ):
            return instruction
        role = role_at(module, (computation.name, position, 0))
        (leaf,) = array_leaves(instruction.shape)
        values = random_leaf(source, leaf, role)
        return instruction._replace(
            literal=Literal(array=to_storage(values, leaf.element_type.name))
        )

    computations = tuple(
        replace(c, instructions=tuple(filled(c, i, op) for i, op in enumerate(c.instructions)))
        for c in module.computations
    )
    return replace(module, computations=computations)
