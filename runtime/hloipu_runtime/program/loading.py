"""Parameters loaded with the program: they stay on the device like constants."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Array, Program


def not_given(element_type: str, shape: Sizes) -> Array:
    """Return what stands for an array in storage form until it is given: zeros of no memory."""
    return np.broadcast_to(np.zeros((), storage_dtype(element_type)), shape)


def loaded_with(program: Program, arrays: Mapping[str, Array]) -> Program:
    """Return the program with the arrays of its loaded parameters, by stream, in storage form."""
    array_by_value = {
        value: arrays[port.stream]
        for value, port in zip(program.loaded, program.parameters, strict=False)
    }
    constants = {
        variable: (value, array_by_value.get(value, array))
        for variable, (value, array) in program.constants.items()
    }
    return replace(program, constants=constants)
