"""Addresses of numpy's inner loops: compiled code that calls them gives numpy's bits.

The C API documents the object of a function (numpy: `PyUFuncObject`, the fields `functions`, `data`
and `types`) and what its loops take: addresses of arrays, sizes, and strides in bytes.
"""

import ctypes
from typing import NamedTuple

import numpy as np


class _Function(ctypes.Structure):
    _fields_ = [  # as ctypes wants it
        ("head", ctypes.c_char * object.__basicsize__),
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("loops", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("types", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    ]


class NumpyLoop(NamedTuple):
    """One function for one type of floats."""

    function: np.ufunc
    type: str
    """f32 or f64, of all arguments and the result."""

    @property
    def address(self) -> tuple[int, int] | None:
        """Where the loop and its data lie; None: numpy has none, or not as is expected."""
        function, letter = self.function, {"f32": "f", "f64": "d"}[self.type]
        signature = letter * function.nin + "->" + letter
        seen = _Function.from_address(id(function))
        own = (function.nin, function.nout, function.nargs, function.ntypes)
        if own != (seen.inputs, seen.outputs, seen.arguments, seen.types):
            return None
        if seen.name != function.__name__.encode() or signature not in function.types:
            return None
        number = function.types.index(signature)
        loop = seen.loops[number]
        return None if loop is None else (loop, seen.data[number] or 0)
