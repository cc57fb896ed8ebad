"""The header of a frame: canonical JSON, and the table of arrays in it."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program_io.frame.layout import (
    LONGEST_NAME,
    MOST_ARRAYS,
    MOST_DIMENSIONS,
    aligned,
)

SCHEMA = "hloipu.frame/1"
_KEYS = {"schema", "kind", "meta", "arrays"}
_ROW_KEYS = {"name", "type", "shape", "offset", "length"}


class ArrayRow(NamedTuple):
    """One array of the table: its offset counts from the first array, its length is in bytes."""

    name: str
    element_type: str
    shape: tuple[int, ...]
    offset: int
    length: int


class Header(NamedTuple):
    """Header of a frame: its kind, free data, and the table of arrays."""

    kind: str
    meta: dict[str, Any]
    rows: tuple[ArrayRow, ...]

    @property
    def array_bytes(self) -> int:
        """Bytes from the first array to the end of the last one, zeros after it included."""
        return aligned(self.rows[-1].offset + self.rows[-1].length) if self.rows else 0


@cache
def element_types() -> dict[np.dtype[Any], str]:
    """Return the element type of every dtype that a frame can hold."""
    return {user_dtype(name): name for name in ELEMENT_TYPES if _is_array_type(name)}


def table_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[ArrayRow, ...]:
    """Return the table of arrays, in their order, each aligned after the one before.

    Raises ArtefactError E4006 for a name or a dtype that a frame cannot hold.
    """
    rows = []
    offset = 0
    for name, array in arrays.items():
        element_type = element_types().get(array.dtype)
        if element_type is None or not _is_name(name) or array.ndim > MOST_DIMENSIONS:
            raise ArtefactError(
                "E4006",
                f"a frame cannot hold the array {name[:LONGEST_NAME]!r} "
                f"of {array.ndim} dimensions and dtype {array.dtype}",
                hint="names are printable and short, dtypes those of element types, little endian",
            )
        shape = tuple(map(int, array.shape))
        rows.append(ArrayRow(name, element_type, shape, offset, array.nbytes))
        offset = aligned(offset + array.nbytes)
    if len(rows) > MOST_ARRAYS:
        raise ArtefactError("E4006", f"a frame holds {MOST_ARRAYS} arrays, not {len(rows)}")
    return tuple(rows)


def encode(header: Header) -> bytes:
    """Return a header as canonical JSON: keys sorted, no spaces, ASCII, no NaN and no infinity.

    Raises ArtefactError E4005 where `meta` is not JSON data.
    """
    record = {
        "schema": SCHEMA,
        "kind": header.kind,
        "meta": header.meta,
        "arrays": [
            {
                "name": row.name,
                "type": row.element_type,
                "shape": list(row.shape),
                "offset": row.offset,
                "length": row.length,
            }
            for row in header.rows
        ],
    }
    try:
        return _canonical(record)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtefactError("E4005", f"the header is not JSON data: {error}") from error


def _canonical(record: object) -> bytes:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def decode(text: bytes, name: str) -> Header:
    """Return the header that a canonical JSON text holds.

    Raises ArtefactError E4005 where it is no such text, E4006 where its table of arrays is wrong.
    """
    try:
        record = json.loads(text.decode("ascii"))
        canonical = _canonical(record) == text
        if b"\\ud" in text:  # halves of pairs that stand alone are no characters
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:  # not ASCII, not JSON, too deep, NaN
        raise _malformed(name, f"not JSON: {str(error)[:200]}") from error
    if not canonical:
        raise _malformed(name, "not in canonical form")
    if not isinstance(record, dict) or record.keys() != _KEYS:
        raise _malformed(name, f"its keys are not {', '.join(sorted(_KEYS))}")
    if record["schema"] != SCHEMA:
        raise _malformed(name, f"its schema is not {SCHEMA}")
    kind, meta, table = record["kind"], record["meta"], record["arrays"]
    if not isinstance(kind, str) or not isinstance(meta, dict) or not isinstance(table, list):
        raise _malformed(name, "kind, meta and arrays are not a text, an object and a list")
    if len(table) > MOST_ARRAYS:
        raise _malformed(name, f"more than {MOST_ARRAYS} arrays")
    return Header(kind, meta, tuple(_rows(table, name)))


def _rows(table: list[Any], name: str) -> Iterator[ArrayRow]:
    """Yield the rows of a table, each checked and where it must be."""
    names: set[str] = set()
    offset = 0
    for number, record in enumerate(table):
        row = _row(record)
        if row is None:
            raise _bad_table(name, number, "it is not a name, a type, a shape and a place")
        if row.name in names:
            raise _bad_table(name, number, f"a second array {row.name!r}")
        names.add(row.name)
        width = user_dtype(row.element_type).itemsize
        if row.length != prod(row.shape) * width:
            raise _bad_table(name, number, f"{row.length} bytes are not what its shape takes")
        if row.offset != offset:
            raise _bad_table(name, number, f"it lies at {row.offset}, not at {offset}")
        offset = aligned(offset + row.length)
        yield row


def _row(record: object) -> ArrayRow | None:
    """Return a row of the right types, or None."""
    if not isinstance(record, dict) or record.keys() != _ROW_KEYS:
        return None
    name, element_type, shape = record["name"], record["type"], record["shape"]
    if not isinstance(name, str) or not _is_name(name):
        return None
    if not isinstance(element_type, str) or not _is_array_type(element_type):
        return None
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        return None
    numbers = [*shape, record["offset"], record["length"]]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        return None
    # numpy multiplies the sizes that are not 0, and has no array where that overflows.
    if prod(size or 1 for size in shape) * user_dtype(element_type).itemsize >= 2**63:
        return None
    return ArrayRow(name, element_type, tuple(shape), record["offset"], record["length"])


def _is_name(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _is_array_type(name: str) -> bool:
    return name in ELEMENT_TYPES and ELEMENT_TYPES[name].is_array


def _malformed(name: str, fault: str) -> ArtefactError:
    return ArtefactError("E4005", f"the header cannot be used: {fault}", name=name)


def _bad_table(name: str, number: int, fault: str) -> ArtefactError:
    return ArtefactError("E4006", f"array {number} of the table cannot be: {fault}", name=name)
