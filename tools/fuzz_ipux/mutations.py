"""Changes to JSON data and arrays, each a small lie."""

import copy
import random
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Json = Any

_NUMBERS = (
    0, 1, -1, 2, 7, 255, 2**16, 2**31, 2**32, 2**45, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30,
)  # fmt: skip
_STRANGERS: tuple[Json, ...] = (
    None, True, False, 0, -1, 1.5, "", "x", "\u00e9\n", [], {}, [[]], [None], {"a": 1},
)  # fmt: skip
_WORDS = tuple(
    "f32 s32 pred bf16 u4 c64 token tuple add compare select dot elementwise copy reduce sort "
    "lapack parameter constant state temporary ComputeSet Exchange Sync Repeat RepeatWhile If "
    "Switch Call Parallel Sequence __class__ os.system tiny".split()
)
_NAMES = (
    "\ud800", "x\udc80y", "\x1b[31m", "a\nfits: all", "\x00", "\u202eb", "\x9b2J", "x" * 2000, "",
)  # fmt: skip
"""What a name of a stranger may be."""


def mutate(
    meta: Json, arrays: dict[str, Array], rng: random.Random
) -> tuple[Json, dict[str, Array]]:
    """Return changed copies of a file's data and arrays."""
    meta, arrays = copy.deepcopy(meta), dict(arrays)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if arrays and rng.random() < 0.08:
            _change_array(arrays, rng)
        else:
            inner = meta.get("program")
            is_deep = isinstance(inner, dict) and len(inner) > 0 and rng.random() < 0.9
            _change(inner if is_deep else meta, rng)
    return meta, arrays


def _change(meta: Json, rng: random.Random) -> None:
    """Change one place, found by going down at random."""
    holder, key = _place(meta, rng)
    value = holder[key]
    kind = rng.random()
    if kind < 0.04:
        holder[key] = copy.deepcopy(rng.choice(_STRANGERS))
    elif kind < 0.2:
        holder[key] = copy.deepcopy(_like(value, meta, rng))
    elif kind < 0.25:
        _drop_or_repeat(holder, key, rng)
    elif type(value) is int:
        holder[key] = _number(value, rng)
    elif isinstance(value, str):
        holder[key] = rng.choice(_WORDS if rng.random() < 0.7 else _NAMES)
    elif isinstance(value, list) and value:
        _change_list(value, rng)
    elif kind < 0.3:
        holder[key] = _deep(value, rng.choice((3, 70, 400)))
    else:
        holder[key] = copy.deepcopy(rng.choice(_STRANGERS))


def _place(meta: Json, rng: random.Random) -> tuple[Any, Any]:
    """Return a container and a key in it; every level is as likely to be the last."""
    holder: Any = {"": meta}
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.9:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    if key == "":
        holder, key = meta, rng.choice(list(meta))
    return holder, key


def _like(value: Json, meta: Json, rng: random.Random) -> Json:
    """Return what stands in another place, if one of a few has the same kind of data."""
    for _ in range(10):
        holder, key = _place(meta, rng)
        other = holder[key]
        alike = type(other) is type(value) and other != value
        if alike and (not isinstance(value, list) or len(other) == len(value)):
            return other
    return value


def _number(value: int, rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.5:
        return value + rng.choice((-2, -1, 1, 2))
    if kind < 0.7:
        return rng.randrange(max(2, abs(value) * 2))
    return -value if kind < 0.75 else rng.choice(_NUMBERS)


def _drop_or_repeat(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict) or rng.random() < 0.5:
        del holder[key]
    else:
        holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 50))


def _change_list(items: list[Any], rng: random.Random) -> None:
    kind = rng.randrange(4)
    one, other = rng.randrange(len(items)), rng.randrange(len(items))
    if kind == 0:
        items[one], items[other] = items[other], items[one]
    elif kind == 1:
        items[one] = copy.deepcopy(items[other])
    elif kind == 2:
        del items[one:]
    else:
        items.reverse()


def _deep(value: Json, levels: int) -> Json:
    for _ in range(levels):
        value = [value]
    return value


def _change_array(arrays: dict[str, Array], rng: random.Random) -> None:
    name = rng.choice(list(arrays))
    array = arrays[name]
    kind = rng.randrange(5)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[rng.choice(("constant.0", "constant.1", "other"))] = array
    elif kind == 2:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice(("f4", "f8", "i4", "i1", "u1", "?")))
    elif kind == 3:
        arrays[name] = np.resize(array, (*array.shape, rng.choice((0, 1, 2))))
    else:
        raw: Array = np.frombuffer(rng.randbytes(array.nbytes), np.uint8)
        raw = raw & 1 if array.dtype == bool else raw
        arrays[name] = raw.view(array.dtype).reshape(array.shape)
