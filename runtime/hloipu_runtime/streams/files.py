"""Arrays of .npy and .npz files, mapped into memory where they lie there uncompressed.

Headers are read first, and nothing is unpacked by a number from the file before it is checked.
numpy maps .npy files only. A member of a zip archive that is stored without compression is a .npy
file at an offset (PKWARE APPNOTE 4.3.7: the local header's own name and extra lengths count).
"""

import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod
from stat import S_ISREG
from typing import IO, Any, NamedTuple

import numpy as np

from hloipu_runtime.atomic_file import open_without_waiting
from hloipu_runtime.errors import StreamError
from hloipu_runtime.plain_text import printable

Array = np.ndarray[Any, Any]

MAX_UNPACKED_BYTES = 4 << 30
"""Of all compressed arrays of one file together; they are unpacked to memory."""
FREELY_UNPACKED_BYTES = 128 << 20
MAX_UNPACKED_FOR_EACH_BYTE = 32
"""Bytes of arrays that one byte in the file may stand for where they are more than those that are
unpacked freely. Assumed: deflate makes 1,032 of one (zlib: Technical Details), and samples seldom
more than ten; what grows more is mapped, not unpacked, where it is stored as it is."""

_REFUSALS = (
    OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, SyntaxError, MemoryError,
    OverflowError, RecursionError, tokenize.TokenError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""What numpy and zipfile raise on damaged files; numpy reads headers as Python literals."""

_LOCAL_HEADER_BYTES = 30
_LENGTHS_AT = 26
_MAGIC = b"\x93NUMPY"
_LENGTH_FORMS = {1: "<H", 2: "<I", 3: "<I"}
"""Of the header's length, by major version (numpy: doc/source/reference/format)."""
_MOST_HEADER_BYTES = 10_000
"""As numpy reads without being told that the file is trusted."""
_MOST_DIMENSIONS = 64
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes; decompressors of others take memory by a number from the file."""


class Stored(NamedTuple):
    """What the header of a stored array says."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    header_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize


class ArrayFile:
    """The arrays of an open .npz file by name, or the one of an .npy file under the name ``."""

    def __init__(self, path: str, stream: IO[bytes]) -> None:
        self.path = path
        self._stream = stream
        self.is_archive: bool = stream.read(2) == b"PK"
        self._archive = zipfile.ZipFile(stream) if self.is_archive else None
        listed = self._archive.infolist() if self._archive else ()
        self._members = {
            info.filename.removesuffix(".npy"): info
            for info in listed
            if info.filename.endswith(".npy")
        }
        if self.is_archive and not self._members:
            raise unreadable(path, "there is no array in it")

    @property
    def names(self) -> list[str]:
        """Names of the arrays, in the file's order."""
        return list(self._members) if self.is_archive else [""]

    def stored(self, name: str) -> Stored:
        """Return what the header of an array says; nothing else is read."""
        if self._archive is None:
            self._stream.seek(0)
            header = self._header(self._stream, name, os.fstat(self._stream.fileno()).st_size)
        else:
            info = self._info(name)
            with self._archive.open(info) as member:
                header = self._header(member, name, info.file_size)
        return header

    def require_small(self, names: Collection[str]) -> None:
        """Raise StreamError E2032 where compressed arrays take more memory than may be."""
        packed = [self._info(name) for name in names if not self._is_mappable(name)]
        unpacked = sum(info.file_size for info in packed)
        # Members may overlap, and say what they like of their sizes.
        there = min(
            sum(info.compress_size for info in packed), os.fstat(self._stream.fileno()).st_size
        )
        most = max(FREELY_UNPACKED_BYTES, there * MAX_UNPACKED_FOR_EACH_BYTE)
        if unpacked > min(most, MAX_UNPACKED_BYTES):
            raise unreadable(
                self.path, f"its arrays unpack from {there:,} bytes to {unpacked:,}, more than "
                f"{min(most, MAX_UNPACKED_BYTES):,}",
            )  # fmt: skip

    def read(self, name: str) -> Array:
        """Return an array: a view of the file where it lies there as it is."""
        stored = self.stored(name)
        if stored.size_bytes == 0:
            return np.empty(stored.shape, stored.dtype)
        order = "F" if stored.is_fortran else "C"
        if self._is_mappable(name):
            offset = self._begin(name) + stored.header_bytes
            mapped: Array = np.memmap(
                self.path, stored.dtype, mode="r", offset=offset, shape=stored.shape,
                order="F" if stored.is_fortran else "C",
            )  # fmt: skip
            return mapped
        assert self._archive is not None
        data = np.empty(stored.size_bytes, np.uint8)
        with self._archive.open(self._info(name)) as member:
            member.read(stored.header_bytes)
            at = 0
            while at < data.size:
                count = member.readinto(data.data[at:])  # type: ignore[attr-defined]
                if not count:
                    raise unreadable(self.path, f"array {name!r} is cut short")
                at += count
            member.read(1)  # its check sum is compared at the end
        return data.view(stored.dtype).reshape(stored.shape, order=order)  # type: ignore[call-overload, no-any-return]

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._members[name]
        if info.flag_bits & 1:
            raise unreadable(self.path, f"array {name!r} is encrypted")
        if info.compress_type not in _METHODS:
            raise unreadable(self.path, f"array {name!r} is compressed as numpy never does")
        return info

    def _is_mappable(self, name: str) -> bool:
        return self._archive is None or self._info(name).compress_type == zipfile.ZIP_STORED

    def _begin(self, name: str) -> int:
        """Return where the bytes of an uncompressed array begin in the file."""
        if self._archive is None:
            return 0
        info = self._members[name]
        self._stream.seek(info.header_offset)
        header = self._stream.read(_LOCAL_HEADER_BYTES)
        if header[:4] != b"PK\x03\x04":
            raise unreadable(self.path, f"array {info.filename!r} has no local header")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, _LENGTHS_AT)
        return int(info.header_offset) + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)

    def _header(self, stream: IO[bytes], name: str, whole_bytes: int) -> Stored:
        head = stream.read(8)
        form = _LENGTH_FORMS.get(head[6]) if len(head) == 8 and head[:6] == _MAGIC else None
        if form is None:
            raise unreadable(
                self.path, f"{name!r} is not an array" if name else "it is not an array"
            )
        packed = stream.read(struct.calcsize(form))
        (length,) = struct.unpack(form, packed)
        if length > _MOST_HEADER_BYTES:
            raise unreadable(self.path, f"array {name!r} has a header of {length} bytes")
        text = BytesIO(packed + stream.read(length))
        known = np.lib.format
        read = known.read_array_header_1_0 if head[6] == 1 else known.read_array_header_2_0
        shape, is_fortran, dtype = read(text)
        stored = Stored(shape, dtype, is_fortran, len(head) + len(packed) + length)
        if dtype.hasobject:
            raise unreadable(self.path, f"array {name!r} holds Python objects")
        if len(shape) > _MOST_DIMENSIONS or not all(0 <= size < 2**63 for size in shape):
            raise unreadable(self.path, f"array {name!r} has no shape that can be")
        if prod(size or 1 for size in shape) * max(dtype.itemsize, 1) >= 2**63:
            raise unreadable(self.path, f"array {name!r} is larger than can be")
        if stored.header_bytes + stored.size_bytes > whole_bytes:
            raise unreadable(self.path, f"array {name!r} is cut short")
        return stored


@contextmanager
def array_file(path: str) -> Iterator[ArrayFile]:
    """Open an .npy or .npz file; what goes wrong while it is read is a StreamError E2032."""
    try:
        with open(path, "rb", opener=open_without_waiting) as stream:
            if not S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise unreadable(path, "it is not a regular file, which can be mapped")
            yield ArrayFile(path, stream)
    except _REFUSALS as error:
        raise unreadable(path, str(error)) from error


def mapped_arrays(path: str, names: Collection[str] = ()) -> Array | dict[str, Array]:
    """Return the array of an .npy file, or the arrays of an .npz file by name.

    `names` are those that are wanted, by default all.
    Raises StreamError E2032 where the file cannot be read as such, has not all that are wanted, or
    unpacks to too much; pickled objects are refused.
    """
    with array_file(path) as file:
        missing = [name for name in names if name not in file.names or not file.is_archive]
        if missing:
            raise StreamError(
                "E2032",
                f"{printable(path)}: no array named {missing[0]!r}",
                expected=missing[0],
                found=", ".join(sorted(file.names)[:8]) if file.is_archive else "one array",
            )
        if not file.is_archive:
            return file.read("")
        wanted = names or file.names
        file.require_small(wanted)
        return {name: file.read(name) for name in wanted}


def unreadable(path: str, why: str) -> StreamError:
    """Return the error of a file that holds no arrays that can be read."""
    return StreamError(
        "E2032",
        f"cannot read arrays from {path!r}: {why}",
        expected="an .npy or .npz file",
        hint="write it with numpy.save, or numpy.savez to have it mapped instead of unpacked",
    )
