"""What `infeed_config` and `outfeed_config` say: the queue's name, and which elements it keeps.

The bytes are a protocol buffer, `PoplarFeedConfig` (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/poplar_feed_config.proto): 2 the name, 3 the mode, 4 the
types, 5 the depth of prefetching.
"""

import re
from typing import NamedTuple

from hloipu_compiler.hlo.strings import unquote
from hloipu_compiler.hlo.text_fault import TextFault

_NAME, _MODE = 2, 3
_LAST = 1
_MOST_BYTES = 1 << 12
_UNFIT = re.compile(r"[^\w.\-/]")


class Feed(NamedTuple):
    """A queue as a module names it."""

    name: str
    is_last: bool = False
    """Whether only the last element of a run is kept."""


def feed_of(config: str, fallback: str) -> Feed:
    """Return the queue of a configuration as it stands in the text; `fallback` names one unnamed.

    Bytes that are no such message are no name: nothing is raised.
    """
    fields = _fields(_bytes(config))
    name = fields.get(_NAME, b"")
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
    return Feed(_UNFIT.sub("_", text) or fallback, fields.get(_MODE) == _LAST)


def _bytes(config: str) -> bytes:
    text = config
    if config.startswith('"'):
        try:
            text = unquote(config)
        except TextFault:
            return b""
    return text[:_MOST_BYTES].encode("latin-1", "surrogateescape" if text.isascii() else "replace")


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Return the fields of a message, the last of each number; none if it is damaged."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            found[tag >> 3], at = _varint(data, at)
        elif tag & 7 == 2:
            size, at = _varint(data, at)
            found[tag >> 3] = data[at : at + size]
            at += size
        else:
            return {}
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at
