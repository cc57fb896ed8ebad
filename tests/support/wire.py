"""Messages between `xla_oracle` and its child: 4 bytes of length, a JSON object, raw arrays."""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (registers bfloat16 and the float8 names with numpy)
import numpy as np

Json = dict[str, Any]
Array = np.ndarray[Any, Any]
Reply = tuple[Json, Sequence[Array]]


class Readable(Protocol):
    """What messages are read from."""

    def read(self, count: int, /) -> bytes:
        """Read `count` bytes, or fewer at the end."""


class Writable(Protocol):
    """What messages are written to."""

    def write(self, data: "memoryview[int]", /) -> int | None:
        """Write some of the bytes and return how many."""


def read_message(stream: Readable) -> Reply | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    message: Json = json.loads(stream.read(struct.unpack("<I", head)[0]))
    arrays = []
    for form in message.pop("arrays", ()):
        raw = np.frombuffer(stream.read(form["bytes"]), dtype=np.dtype(form["dtype"]))
        arrays.append(raw.reshape(form["shape"]))
    return message, arrays


def write_message(stream: Writable, message: Mapping[str, Any], arrays: Sequence[Array]) -> None:
    """Write one message."""
    forms = [{"dtype": a.dtype.name, "shape": a.shape, "bytes": a.nbytes} for a in arrays]
    text = json.dumps({**message, "arrays": forms}).encode()
    pieces = [struct.pack("<I", len(text)), text]
    data = memoryview(b"".join([*pieces, *(np.ascontiguousarray(a).tobytes() for a in arrays)]))
    while data:  # an unbuffered pipe takes what it has room for
        data = data[stream.write(data) or 0 :]
