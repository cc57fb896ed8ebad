"""Frames: named arrays and JSON data in one file with a checksum."""

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import Any

import numpy as np

from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program_io.frame.header import ArrayRow, Header, decode, encode, table_of
from hloipu_runtime.program_io.frame.layout import (
    DIGEST_BYTES,
    LEAST_FILE_BYTES,
    MAGIC,
    MOST_FILE_BYTES,
    MOST_HEADER_BYTES,
    PRELUDE,
    VERSION,
    aligned,
)

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
        with open(path, "rb", opener=_open_without_waiting) as stream:
            status = os.fstat(stream.fileno())
            if not S_ISREG(status.st_mode):
                raise ArtefactError("E4001", "not a file of hloipu", name=name)
            check_length(status.st_size, name)
            data = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("E3001", f"cannot read {name!r}: {reason}") from error
    return parse_frame(memoryview(data), name=name, kind=kind)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking on a pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
