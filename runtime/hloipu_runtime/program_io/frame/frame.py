"""Frames: named arrays and JSON data in one file with a checksum."""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from math import prod
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hloipu_runtime.atomic_file import open_without_waiting, replacing
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program_io.frame.layout import (
    DIGEST_BYTES,
    LEAST_FILE_BYTES,
    LONGEST_NAME,
    MAGIC,
    MOST_ARRAYS,
    MOST_DIMENSIONS,
    MOST_FILE_BYTES,
    MOST_HEADER_BYTES,
    PRELUDE,
    VERSION,
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


Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """Contents of a file: a kind such as `executable`, JSON data, and named arrays.

    Arrays that were read are read-only views of the file.
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def encode_frame(frame: Frame) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a frame in pieces, the digest last; equal frames give equal bytes.

    Raises ArtefactError E4005, E4006 or E4009 where a frame cannot hold what is asked.
    """
    rows = table_of(frame.arrays)
    header = Header(frame.kind, frame.meta, rows)
    text = encode(header)
    if len(text) > MOST_HEADER_BYTES:
        raise ArtefactError("E4005", f"a header of {len(text)} bytes, over {MOST_HEADER_BYTES}")
    length = aligned(PRELUDE.size + len(text)) + header.array_bytes + DIGEST_BYTES
    digest = hashlib.sha256()
    for piece in _pieces(frame, rows, text, length):
        digest.update(piece)
        yield piece
    yield digest.digest()


def _pieces(
    frame: Frame, rows: tuple[ArrayRow, ...], text: bytes, length: int
) -> Iterator[bytes | memoryview]:
    end = PRELUDE.size + len(text)
    yield PRELUDE.pack(MAGIC, VERSION, len(text), length)
    yield text
    yield bytes(aligned(end) - end)
    for row, array in zip(rows, frame.arrays.values(), strict=True):
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if ELEMENT_TYPES[row.element_type].bits < 8:
            raw = raw & np.uint8((1 << ELEMENT_TYPES[row.element_type].bits) - 1)
        check_values(raw, row.element_type, row.name, "")
        yield raw.data
        yield bytes(aligned(raw.size) - raw.size)


def write_frame(path: str | Path, frame: Frame) -> None:
    """Write a frame to a file, all of it or nothing; UsageError E3004 where that cannot be."""
    with replacing(path) as stream:
        stream.writelines(encode_frame(frame))


def read_frame(path: str | Path, *, kind: str = "") -> Frame:
    """Return the frame that a file holds; its arrays are mapped, not loaded.

    The file must not be changed in place while they are in use; `write_frame` never does.
    Raises UsageError E3001 where it cannot be read, ArtefactError (E4001 to E4009) where it is not
    exactly what was written, or of another kind than `kind`.
    """
    name = str(path)
    try:
        with open(path, "rb", opener=open_without_waiting) as stream:
            status = os.fstat(stream.fileno())
            if not S_ISREG(status.st_mode):
                raise ArtefactError("E4001", "not a file of hloipu", name=name)
            check_length(status.st_size, name)
            data = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("E3001", f"cannot read {name!r}: {reason}") from error
    return parse_frame(memoryview(data), name=name, kind=kind)


def parse_frame(data: bytes | memoryview, *, name: str = "", kind: str = "") -> Frame:
    """Return the frame that bytes hold, its arrays views of them.

    Raises ArtefactError: E4001 no frame, E4002 cut off or too long, E4003 another version, E4004
    damaged, E4005 bad header, E4006 bad table, E4007 bad filling, E4008 another kind, E4009 bad
    values. Nothing is allocated by a number from the file before it is checked.
    """
    view = memoryview(data).toreadonly().cast("B")
    length, text_end = check_prelude(view, name)
    body = view[: length - DIGEST_BYTES]
    if hashlib.sha256(body).digest() != view[length - DIGEST_BYTES :]:
        raise ArtefactError(
            "E4004",
            "damaged: its bytes are not those that were written",
            name=name,
            hint="copy it again, or write it again",
        )
    header = decode(bytes(view[PRELUDE.size : text_end]), name)
    start = aligned(text_end)
    if start + header.array_bytes != len(body):
        raise ArtefactError(
            "E4006",
            f"its arrays take {header.array_bytes} bytes, {len(body) - start} are there",
            name=name,
        )
    if kind and header.kind != kind:
        raise ArtefactError(
            "E4008", f"it holds a {header.kind[:64]!r}, expected is {kind!r}", name=name
        )
    check_filling(body[text_end:start], name)
    arrays: dict[str, Array] = {}
    for row in header.rows:
        end = start + row.offset + row.length
        check_filling(body[end : aligned(end)], name)
        raw = np.frombuffer(body[start + row.offset : end], np.uint8)
        check_values(raw, row.element_type, row.name, name)
        arrays[row.name] = raw.view(user_dtype(row.element_type)).reshape(row.shape)
    return Frame(header.kind, header.meta, MappingProxyType(arrays))


def check_length(length: int, name: str) -> None:
    """Raise ArtefactError where a file is too short or too long to be a frame at all."""
    if length < LEAST_FILE_BYTES:
        raise ArtefactError("E4002", f"cut off after {length} bytes", name=name)
    if length > MOST_FILE_BYTES:
        raise ArtefactError("E4002", f"{length} bytes, over {MOST_FILE_BYTES}", name=name)


def check_prelude(view: memoryview, name: str) -> tuple[int, int]:
    """Return the length of the whole and the end of the header, both checked against the bytes."""
    if view[: len(MAGIC)] != MAGIC[: len(view)]:
        raise ArtefactError(
            "E4001", "not a file of hloipu", name=name, hint="give a file that hloipu wrote"
        )
    check_length(len(view), name)
    _, version, header_bytes, length = PRELUDE.unpack_from(view)
    if version != VERSION:
        raise ArtefactError(
            "E4003",
            f"version {version} of the format; this hloipu reads version {VERSION}",
            name=name,
            hint="have this hloipu write it again",
        )
    if length != len(view):
        raise ArtefactError(
            "E4002", f"it was written with {length} bytes and has {len(view)}", name=name
        )
    end = PRELUDE.size + header_bytes
    if header_bytes > MOST_HEADER_BYTES or aligned(end) > length - DIGEST_BYTES:
        raise ArtefactError("E4005", f"a header of {header_bytes} bytes does not fit", name=name)
    return length, end


def check_filling(filling: memoryview, name: str) -> None:
    """Raise ArtefactError E4007 where the bytes between two parts are not zeros."""
    if any(filling):
        raise ArtefactError("E4007", "bytes between its parts that are not zero", name=name)


def check_values(raw: Array, element_type: str, array: str, name: str) -> None:
    """Raise ArtefactError E4009 where a byte is no value of a type that fills its byte in part."""
    bits = 1 if element_type == "pred" else ELEMENT_TYPES[element_type].bits
    if bits < 8 and raw.size and int(raw.max()) >= 1 << bits:
        raise ArtefactError(
            "E4009", f"the array {array!r} holds a byte that is no {element_type}", name=name
        )
