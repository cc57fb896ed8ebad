"""Inputs of programs, drawn port by port; the same everywhere."""

from zlib import crc32

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.storage import to_storage, user_dtype
from hloipu_runtime.program.program import Array, Port


def inputs_for(name: str, ports: tuple[Port, ...], number: int) -> dict[str, Array]:
    """Draw arrays in storage form; a program's are the same on every machine and in every run."""
    return {
        port.stream: _array(port, np.random.PCG64(crc32(f"{name}#{number}#{n}".encode())), number)
        for n, port in enumerate(ports)
    }


def _array(port: Port, source: np.random.PCG64, number: int) -> Array:
    """Draw numbers between -1 and 1, or between 1/2 and 2; small whole ones, or large ones."""
    count = int(np.prod(port.shape, dtype=np.int64))
    words = np.asarray(source.random_raw(count), np.uint64).reshape(port.shape) >> np.uint64(40)
    kind = ELEMENT_TYPES[port.element_type]
    if kind.kind is Kind.PREDICATE:
        drawn = words % np.uint64(2) == 1
    elif kind.is_integer:
        most = min((1, 3, 9, 100)[number % 4], 2 ** (kind.bits - 1) - 1)
        drawn = (words % np.uint64(most + 1)).astype(np.int64)
    else:
        unit = words.astype(np.float64) / 2**24
        drawn = unit * 2 - 1 if number % 2 == 0 else unit * 1.5 + 0.5
        if kind.is_complex:
            drawn = drawn + 1j * unit[::-1] if unit.ndim else drawn + 0.5j
    return to_storage(drawn.astype(user_dtype(port.element_type)), port.element_type)
