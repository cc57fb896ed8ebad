"""Read HLO text from a path, an open file or the text itself."""

import os
import re
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from time import monotonic, sleep
from typing import IO, cast

from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits, check_limit
from hloipu_compiler.source import Source
from hloipu_runtime.atomic_file import open_without_waiting
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program_io.frame.layout import MAGIC

HloInput = str | Path | IO[str] | IO[bytes]
"""A path, an open file, or the text itself: a `str` with a newline in it is a text."""

PROTOBUF_HINT = (
    "if it is a serialized HLO module, convert it once with JAX: "
    "jaxlib._hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()"
)
_LOOKED_AT = 4096
"""Bytes at the beginning that tell a binary file from a text."""
_READ_AT_ONCE = 2**24
_MOST_READ_BYTES = 2**62
_WAIT_SECONDS = 2.0
"""For somebody to write to a named pipe. Assumed: who does is started with the command."""
_TICK_SECONDS = 0.02
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]|\xff\xfe|\xfe\xff")
_PACKED = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip file", b"\x7fELF": "a program"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_source(given: HloInput, limits: Limits = DEFAULT_LIMITS) -> Source:
    """Return the text of an input with the name to show for it.

    Raises UsageError where there is no such file, or what it holds is not text; LimitError where
    it is longer than `limits`, of which no more is read.
    """
    if isinstance(given, str) and "\n" in given:
        return Source(given)
    if isinstance(given, str | Path):
        return read_file(Path(given), limits)
    if not hasattr(given, "read"):
        raise UsageError(
            "E3001",
            f"cannot read HLO text from an object of type {type(given).__name__}",
            hint="give a path to an HLO text dump, an open file, or the text itself",
        )
    return read_stream(given, str(getattr(given, "name", "<file>")), limits)


def read_file(path: Path, limits: Limits = DEFAULT_LIMITS) -> Source:
    """Return the text of a file; raises what `read_source` raises."""
    try:
        with open(path, "rb", opener=open_without_waiting) as stream:
            status = os.fstat(stream.fileno())
            if S_ISREG(status.st_mode):  # said of 100 GB before any is read
                check_limit(limits, "input_bytes", status.st_size)
            return read_stream(_begun(stream), str(path), limits)
    except ValueError as error:  # a NUL in the path
        raise _unreadable(str(path), str(error)) from error
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from error


class _Begun:
    """A pipe of which the first bytes are read already."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head = head
        self._stream = stream

    def read(self, most: int) -> bytes:
        head, self._head = self._head[:most], self._head[most:]
        return head or self._stream.read(most)


def _begun(stream: IO[bytes]) -> IO[bytes]:
    """Return an open file; OSError for a pipe that nobody writes to within a short time."""
    head: bytes | None = b""
    if S_ISFIFO(os.fstat(stream.fileno()).st_mode):
        deadline = monotonic() + _WAIT_SECONDS
        # Without waiting, None: who writes has not written yet; nothing: there is nobody.
        while (head := stream.raw.read(_LOOKED_AT)) == b"":  # type: ignore[attr-defined]
            if monotonic() > deadline:
                raise OSError("this pipe has no writer")
            sleep(_TICK_SECONDS)
    os.set_blocking(stream.fileno(), True)
    return cast(IO[bytes], _Begun(head, stream)) if head else stream


def read_stream(stream: IO[str] | IO[bytes], name: str, limits: Limits = DEFAULT_LIMITS) -> Source:
    """Return the text of an open file; raises what `read_source` raises."""
    most = min(limits.input_bytes, _MOST_READ_BYTES)
    try:
        data = stream.read(min(_LOOKED_AT, most + 1))
        if isinstance(data, bytes):
            require_text(data, name)
        # A terminal or a pipe may give less than was asked for before it ends.
        parts = [data]
        size = len(data)
        while data and size <= most:
            data = stream.read(min(_READ_AT_ONCE, most + 1 - size))
            parts.append(data)
            size += len(data)
    except OSError as error:
        raise _unreadable(name, error.strerror or str(error)) from error
    check_limit(limits, "input_bytes", size)
    if isinstance(data, str):
        return Source("".join(parts), name)  # type: ignore[arg-type]
    return Source(decoded(b"".join(parts), name), name)  # type: ignore[arg-type]


def _unreadable(name: str, reason: str) -> UsageError:
    return UsageError(
        "E3001",
        f"cannot read {name!r}: {reason}",
        hint="give a path to an HLO text dump, or the text itself with its line ends",
    )


def decoded(data: bytes, name: str) -> str:
    """Return bytes as text; latin-1 keeps the bytes of strings that are not UTF-8 apart.

    Raises UsageError for bytes that no text begins with.
    """
    require_text(data, name)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def require_text(data: bytes, name: str) -> None:
    """Raise UsageError for bytes that no text begins with."""
    if data[:2] in _UTF16:
        raise UsageError("E3002", f"{name!r} is UTF-16 text", hint="save it as UTF-8")
    if data.startswith(MAGIC):
        raise UsageError(
            "E3002",
            f"{name!r} is not HLO text but a file that hloipu wrote, such as an executable",
            hint="an executable goes to hloipu run, estimate or emit --stage; "
            "give the text that it was compiled from",
        )
    if _BINARY.search(data[:_LOOKED_AT]):
        kinds = (kind for mark, kind in _PACKED.items() if data.startswith(mark))
        kind = next(kinds, "")
        raise UsageError(
            "E3002",
            f"{name!r} is not HLO text but {kind or 'a binary file'}",
            hint="unpack it first" if kind.endswith(("archive", "gzip file")) else PROTOBUF_HINT,
        )
