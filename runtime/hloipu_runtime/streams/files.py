"""Arrays of .npy and .npz files, mapped into memory where they lie there uncompressed.

numpy maps .npy files only. A member of a zip archive that is stored without compression is a .npy
file at an offset (PKWARE APPNOTE 4.3.7: the local header's own name and extra lengths count).
"""

import os
import struct
import tokenize
import zipfile
import zlib
from stat import S_ISREG
from typing import Any

import numpy as np

from hloipu_runtime.errors import StreamError

Array = np.ndarray[Any, Any]

MAX_UNPACKED_BYTES = 4 << 30
"""Of all compressed arrays of one file together; they are unpacked to memory."""

_REFUSALS = (
    OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, SyntaxError, MemoryError,
    tokenize.TokenError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What numpy and zipfile raise on damaged files; numpy reads headers as Python literals."""

_LOCAL_HEADER_BYTES = 30
_LENGTHS_AT = 26


def mapped_arrays(path: str) -> Array | dict[str, Array]:
    """Return the array of an .npy file, or the arrays of an .npz file by name.

    Raises StreamError E2032 where the file cannot be read as such; pickled objects are refused.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unreadable(path, "it is not a regular file, which can be mapped")
            start = file.read(6)
        if start[:2] == b"PK":
            return _archive(path)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except _REFUSALS as error:
        raise _unreadable(path, str(error)) from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _archive(path: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    unpacked = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename.removesuffix(".npy")
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                found[name] = _mapped_member(path, info)
                continue
            unpacked += info.file_size
            if unpacked > MAX_UNPACKED_BYTES:
                raise _unreadable(path, f"its arrays unpack to more than {MAX_UNPACKED_BYTES}")
            with archive.open(info) as member:
                found[name] = np.lib.format.read_array(member, allow_pickle=False)
    if not found:
        raise _unreadable(path, "there is no array in it")
    return found


def _mapped_member(path: str, info: zipfile.ZipInfo) -> Array:
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        if header[:4] != b"PK\x03\x04":
            raise _unreadable(path, f"array {info.filename!r} has no local header")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, _LENGTHS_AT)
        file.seek(name_bytes + extra_bytes, 1)
        begin = file.tell()
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject:
        raise _unreadable(path, f"array {info.filename!r} holds Python objects")
    size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if offset - begin + size_bytes > info.file_size:
        raise _unreadable(path, f"array {info.filename!r} is cut short")
    if size_bytes == 0:
        return np.empty(shape, dtype)
    mapped: Array = np.memmap(
        path, dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C"
    )
    return mapped


def _unreadable(path: str, why: str) -> StreamError:
    return StreamError(
        "E2032",
        f"cannot read arrays from {path!r}: {why}",
        expected="an .npy or .npz file",
        hint="write it with numpy.save, or numpy.savez to have it mapped instead of unpacked",
    )
