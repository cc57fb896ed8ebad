"""Constants as text: small ones by value, large ones by digest or, on request, byte by byte."""

import hashlib
from math import prod

import numpy as np

from hloipu_runtime.codelets.core.constants import text_of, value_of
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.program import Array, Variable
from hloipu_runtime.program_io.text.faults import ProgramTextError
from hloipu_runtime.program_io.text.tokens import Cursor, Token

MOST_SHOWN = 16
"""Elements of a constant that is shown by value."""
MOST_BYTES = 2**32


def constant_text(array: Array, element_type: str, *, full: bool) -> str:
    """Return a constant's values, its bytes, or its digest."""
    if array.size <= MOST_SHOWN:
        values = " ".join(text_of(element, element_type) for element in array.ravel())
        return f'values "{values}"'
    raw = np.ascontiguousarray(array).tobytes()
    if full:
        return f'bytes "{raw.hex()}"'
    return f'elided "{hashlib.sha256(raw).hexdigest()}" // {len(raw)} bytes'


def read_constant(cursor: Cursor, variable: Variable, supplied: Array | None) -> Array:
    """Read a constant's array in storage form; `supplied` stands in for an elided one."""
    start = cursor.token
    form = cursor.word("values, bytes, elided or given")
    if form == "given":
        return not_given(variable.element_type, variable.shape)
    text = cursor.string()
    dtype = storage_dtype(variable.element_type)
    count = prod(variable.shape)
    if form == "elided":
        if supplied is None:
            raise ProgramTextError(
                "E4021",
                "a constant whose values were left out",
                cursor.span(start),
                hint="print the program with all constants, or give its array",
            )
        if (supplied.dtype, supplied.shape) != (dtype, variable.shape) or text != _digest(supplied):
            cursor.fail("the array that was given is not what was left out", start)
        return supplied
    if form == "values":
        array = _values(cursor, text, variable, start)
    elif form == "bytes":
        try:
            array = np.frombuffer(bytes.fromhex(text), dtype)
        except ValueError:
            cursor.fail("not the bytes of such a constant", start)
    else:
        cursor.fail("a constant is given as values, bytes, elided or given", start)
    if array.size != count:
        cursor.fail(f"{array.size} elements, not {count}", start)
    array = array.reshape(variable.shape)
    array.flags.writeable = False
    return array


def _values(cursor: Cursor, text: str, variable: Variable, start: Token) -> Array:
    words = text.split()
    if len(words) > MOST_SHOWN:
        cursor.fail(f"more than {MOST_SHOWN} elements are given as bytes", start)
    array = np.empty(len(words), storage_dtype(variable.element_type))
    for place, word in enumerate(words):
        try:
            array[place] = value_of(word, variable.element_type)
        except HloipuError as error:
            cursor.fail(error.message, start)
    return array


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
