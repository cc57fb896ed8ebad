"""Axes of a sweep, and its points: all combinations, or a sample of them.

An axis is an option of the table, a number of the machine (`set.KEY`), or a rewrite of the module:
`batch` (samples) and `dtype` (what f32 becomes). Values are texts, as the command line writes them;
`default` leaves the axis as it is without.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from random import Random
from typing import Any

from hloipu.options.composite_kinds import DeviceMap, Integers, Number
from hloipu.options.faults import wrong_value
from hloipu.options.kinds import Integer, Kind
from hloipu.options.table import OPTIONS
from hloipu_compiler.passes.smaller_batch import MOST_SAMPLES
from hloipu_runtime.arguments import shown
from hloipu_runtime.errors import LimitError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.nearest import did_you_mean

DEFAULT = "default"
"""The value that changes nothing."""
FILE, BATCH, DTYPE, SET = "file", "batch", "dtype", "set."
AS_WRITTEN = "f32"
"""The value of `dtype` that narrows nothing."""
MOST_POINTS = 1_000_000
"""Of a grid. Assumed: a row a second fills twelve days."""
MOST_COMBINATIONS = 2**62
"""That points are drawn from: positions are numbers of 64 bits."""
_MOST_AXES = 64
_MOST_VALUES = 10_000
_NARROW = (AS_WRITTEN, "f16", "bf16")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?:([+*])([0-9]{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Axis:
    """A swept option, and its values in order."""

    name: str
    """An option, `set.KEY`, `batch`, `dtype` or `file`."""
    values: tuple[str, ...]

    @property
    def is_ordered(self) -> bool:
        """Whether all values are integers that rise: neighbours are alike."""
        numbers = [int(x) if x.isdecimal() else -1 for x in self.values]
        return -1 not in numbers and numbers == sorted(numbers)


def axis_of_text(text: str) -> Axis:
    """Return the axis that `NAME=V,V…` writes.

    Integers may be ranges: `1..8`, `8..64+8`, `1..64*2`. Values that have commas of their own are
    parted by `;`. Raises UsageError E3190.
    """
    name, mark, values = text.partition("=")
    if not mark or not values.strip():
        raise _refused(f"--over takes NAME=V,V…, not {shown(text)}", "--over target=gc200,bow")
    name = _plain(name)
    mark = ";" if _has_commas(name) else ","
    return axis_of(name, [word.strip() for word in values.split(mark)])


def axis_of(name: str, values: Sequence[Any]) -> Axis:
    """Return an axis over values of Python or texts; raises UsageError E3190 and E3011."""
    name = _plain(name)
    kind = _kind(name)
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | range):
        raise _refused(f"the values of {name} are a list, not {shown(values)}", "")
    texts: list[str] = []
    for value in values:
        texts += _texts(name, kind, value)
        if len(texts) > _MOST_VALUES:
            raise _refused(f"{name} has more than {_MOST_VALUES} values", "make its steps larger")
    if not texts:
        raise _refused(f"{name} has no values", f"give some, such as {DEFAULT}")
    if len(set(texts)) < len(texts):
        twice = next(x for n, x in enumerate(texts) if x in texts[:n])
        raise _refused(f"{name} has the value {shown(twice)} twice", "leave one of them out")
    return Axis(name, tuple(texts))


def checked_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return axes of a sweep; UsageError E3190 where there are too many, or one is there twice."""
    if len(axes) > _MOST_AXES:
        raise _refused(f"{len(axes)} axes are more than {_MOST_AXES}", "sweep over fewer")
    names = [axis.name.rpartition(".")[2] for axis in axes]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise _refused(f"there are two axes {name}", "give all of its values to one")
    if combinations(axes) > MOST_COMBINATIONS:
        raise _too_many(combinations(axes), MOST_COMBINATIONS, "leave axes out")
    return tuple(axes)


def combinations(axes: Sequence[Axis]) -> int:
    """Return how many points the whole grid has."""
    return prod(len(axis.values) for axis in axes)


def points_of(axes: Sequence[Axis], count: int | None, seed: int) -> Iterator[dict[str, str]]:
    """Yield the grid's points in order, the last axis fastest; or `count` different ones, drawn.

    Raises LimitError E5019 for a grid of more than MOST_POINTS.
    """
    total = combinations(axes)
    if count is None or count >= total:
        if total > MOST_POINTS:
            raise _too_many(total, MOST_POINTS, "draw some: --points N --seed S")
        positions: Sequence[int] = range(total)
    else:
        positions = sorted(Random(seed).sample(range(total), count))
    for position in positions:
        yield point_at(axes, position)


def point_at(axes: Sequence[Axis], position: int) -> dict[str, str]:
    """Return the point of the grid at a position."""
    point = {}
    for axis in reversed(axes):
        position, place = divmod(position, len(axis.values))
        point[axis.name] = axis.values[place]
    return {axis.name: point[axis.name] for axis in axes}


def options_at(base: Mapping[str, Any], point: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a call: those of all points, and what a point says in their place.

    To options that may be repeated a point adds.
    """
    options = dict(base)
    for name, text in point.items():
        if text == DEFAULT or name in (FILE, BATCH, DTYPE):
            continue
        if name.startswith(SET):
            options["set"] = _with_number(options.get("set", ()), name.removeprefix(SET), text)
            continue
        kind = OPTIONS[name].kind
        value: Any = kind.read(text)
        if kind.repeatable:
            value = kind.check([*(kind.check(options.get(name) or ()) or ()), *value])  # type: ignore[misc]
            if value is None:
                raise wrong_value(name, kind.expected, text)
        options[name] = value
    return options


def _with_number(base: Any, key: str, number: str) -> tuple[tuple[str, str], ...]:
    kind = OPTIONS["set"].kind
    pairs: Any = kind.check(base) or ()
    number_key = key.rpartition(".")[2]
    return (*((k, v) for k, v in pairs if k.rpartition(".")[2] != number_key), (key, number))


def _plain(name: str) -> str:
    name = name.strip().removeprefix("--")
    return name if name.startswith(SET) else name.replace("-", "_")


def _kind(name: str) -> Kind:
    """Return the kind of an axis's values; UsageError E3190 where it is none."""
    if name == BATCH:
        return Integer(1, MOST_SAMPLES)
    if name in (DTYPE, FILE):
        return Kind()
    if name.startswith(SET) and name != SET:
        return Number()
    option = OPTIONS.get(name)
    if option is None or name == "set" or "estimate" not in option.about.commands:
        known = [x for x, row in OPTIONS.items() if "estimate" in row.about.commands and x != "set"]
        raise _refused(
            f"nothing can be swept over by the name of {shown(name)}",
            "numbers of the machine are axes set.KEY: set.bytes_per_tile=…"
            if name in ("set", SET)
            else did_you_mean(name, [*known, BATCH, DTYPE], "an option, set.KEY, batch or dtype"),
        )
    return option.kind


def _has_commas(name: str) -> bool:
    kind = _kind(name)
    lists = isinstance(kind, Integers | DeviceMap) or kind.repeatable
    return lists or (name != DTYPE and type(kind) is Kind)


def _texts(name: str, kind: Kind, value: Any) -> list[str]:
    """Return the texts of one value, or of a range; UsageError E3011 for one of another kind."""
    if value == DEFAULT:
        return [DEFAULT]
    if name == DTYPE:
        if value not in _NARROW:
            raise wrong_value(name, f"one of {', '.join(_NARROW)}", value)
        return [value]
    if isinstance(value, str) and (match := _RANGE.fullmatch(value)) and kind.check(1) is not None:
        values = _in_range(name, *match.groups())
        return [text for number in values for text in _texts(name, kind, str(number))]
    if isinstance(value, str):
        parsed = kind.read(value)
        if parsed is None or (kind.repeatable and not parsed):
            raise wrong_value(name, kind.expected, value)
        return [value if kind.repeatable else kind.write(parsed)]
    parts: Any = kind.check([value] if kind.repeatable else value)
    if parts is None:
        raise wrong_value(name, kind.expected, value)
    return [kind.write(parts)]


def _in_range(name: str, first: str, last: str, sign: str | None, by: str | None) -> list[int]:
    low, high, step = int(first), int(last), int(by or 1)
    grows = step > 0 if sign != "*" else step > 1 and low > 0
    if low > high or not grows:
        raise _refused(f"the range {first}..{last}{sign or ''}{by or ''} of {name} never ends", "")
    values: list[int] = []
    while low <= high and len(values) <= _MOST_VALUES:
        values.append(low)
        low = low * step if sign == "*" else low + step
    return values


def _refused(message: str, hint: str) -> UsageError:
    return UsageError("E3190", message, hint=hint)


def _too_many(point_count: int, allowed: int, hint: str) -> LimitError:
    return LimitError(
        "E5019",
        f"{point_count:,} points are more than {allowed:,}",
        limit="points",
        allowed=allowed,
        found=point_count,
        hint=hint,
    )
