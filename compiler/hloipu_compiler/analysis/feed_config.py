"""The configuration of infeeds and outfeeds: a plain name, or bytes that hold one.

The bytes are a message in the wire format of protocol buffers, version 3, of which field 2 is the
feed's name (graphcore/tensorflow: tensorflow/compiler/plugin/poplar, `PoplarFeedConfig`).
"""

from typing import NamedTuple

from hloipu_compiler.ir.graph import Instruction

LAST = 1
_NAME, _MODE, _TYPES, _DEPTH = 2, 3, 4, 5
_VARINT, _BYTES = 0, 2
_MOST_BYTES = 1 << 16


class FeedConfig(NamedTuple):
    """A queue's configuration; fields left out are 0 or empty."""

    name: str
    takes_last: bool = False
    """Of an outfeed: only the last element of a run counts."""
    types: tuple[int, ...] = ()
    """TensorFlow's codes of the element types."""
    prefetch_depth: int = 0


def feed_name(config: str) -> str:
    """Return the name that a configuration gives to its queue, or nothing."""
    config_of_feed = feed_config(config)
    return config_of_feed.name


def queue_name(op: Instruction) -> str:
    """Return the name of the queue that an infeed or an outfeed goes by: its own or its opcode."""
    return feed_name(op.attributes.text(f"{op.opcode}_config")) or op.opcode


def feed_config(config: str) -> FeedConfig:
    """Return what a configuration says; text that is no such message is taken as a name."""
    try:
        raw = config.encode("latin-1")
    except UnicodeEncodeError:
        return FeedConfig(_plain(config))
    fields = _fields(raw)
    if fields is None or not isinstance(fields.get(_NAME), bytes):
        return FeedConfig(_plain(config))
    name = fields[_NAME]
    types = fields.get(_TYPES, b"")
    codes = _varints(types) if isinstance(types, bytes) else None
    mode, depth = fields.get(_MODE, 0), fields.get(_DEPTH, 0)
    return FeedConfig(
        name.decode("utf-8", errors="replace") if isinstance(name, bytes) else "",
        mode == LAST,
        tuple(codes or ()),
        depth if isinstance(depth, int) else 0,
    )


def _plain(config: str) -> str:
    """Return a text as a name: what cannot be printed is left out."""
    return "".join(c for c in config if c.isprintable())[:128].strip()


def _fields(raw: bytes) -> dict[int, int | bytes] | None:
    """Return the last value of each field of a message, or None where it is none."""
    if not raw or len(raw) > _MOST_BYTES:
        return None
    value_by_field: dict[int, int | bytes] = {}
    at = 0
    while at < len(raw):
        tag = _varint(raw, at)
        if tag is None or not tag[0] >> 3:
            return None
        number, at = tag
        value = _varint(raw, at)
        if value is None:
            return None
        if number & 7 == _VARINT:
            value_by_field[number >> 3], at = value
        elif number & 7 == _BYTES:
            size, at = value
            if at + size > len(raw):
                return None
            value_by_field[number >> 3] = raw[at : at + size]
            at += size
        else:
            return None
    return value_by_field


def _varint(raw: bytes, at: int) -> tuple[int, int] | None:
    """Return the number that begins at a byte, and where the next one begins."""
    number = shift = 0
    while at < len(raw) and shift < 64:
        number |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:
            return number, at
        shift += 7
    return None


def _varints(raw: bytes) -> list[int] | None:
    numbers = []
    at = 0
    while at < len(raw):
        number_and_end = _varint(raw, at)
        if number_and_end is None:
            return None
        numbers.append(number_and_end[0])
        at = number_and_end[1]
    return numbers
