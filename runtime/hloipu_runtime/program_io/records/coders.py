"""Coders from type annotations: values to JSON data and back; repeated records are written once.

A record is a list of its fields, in the order of their declaration. Where an annotation allows
several records, the list begins with the record's name. Nothing is made but what an annotation of
this package names; a file chooses among numbers, texts and registered codelets. A pool has records
by number.
"""

import importlib
import pkgutil
import re
import types
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import hloipu_runtime.codelets as codelets
from hloipu_runtime.codelets.core.codelet import CODELETS, Codelet
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.errors import ArtefactError, LimitError
from hloipu_runtime.program.mapping import Mapping, Spans, Tiles
from hloipu_runtime.program.steps import Sequence

Json = Any
"""JSON data; what a file holds is checked piece by piece."""

MOST_BLOCKS = 64
"""Blocks of steps within each other: readers recurse, and Python's stack ends at 1,000 calls."""


class Writing:
    """Numbers of the records written so far, by pool."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Json]] = {}
        self._by_identity: dict[int, tuple[object, int]] = {}
        self._by_text: dict[tuple[str, str], int] = {}
        self.blocks = 0

    def seen(self, value: object) -> int | None:
        """Return the number of a record that was written already, the very same object."""
        entry = self._by_identity.get(id(value))
        return None if entry is None else entry[1]

    def number(self, pool: str, value: object, row: Json) -> int:
        """Return the number of a record, under which its pool holds what it was written as.

        Texts are compared and not records: to Python, True is 1.
        """
        rows = self.rows.setdefault(pool, [])
        number = self._by_text.setdefault((pool, repr(row)), len(rows))
        if number == len(rows):
            rows.append(row)
        self._by_identity[id(value)] = (value, number)  # kept alive, so that no other has its id
        return number

    def enter(self) -> None:
        """Enter an inner block; LimitError E5025 where that is too deep."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise LimitError(
                "E5025",
                f"blocks of steps within each other, more than {MOST_BLOCKS} deep",
                limit="file_blocks",
                allowed=MOST_BLOCKS,
                found=self.blocks,
                hint="such a program can be run, but not written to a file",
            )


class Reading:
    """The records of a file that were read so far, by pool, and where the reader is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = "the program"
        self.pools: dict[str, list[Any]] = {}
        self.blocks = 0

    def refused(self, expected: str, found: object) -> ArtefactError:
        """Return the error for data that is not what stands in its place."""
        shown = repr(found) if isinstance(found, int | float | str | None) else type(found).__name__
        return ArtefactError(
            "E4010",
            f"{self.place}: expected is {expected}, found {shown[:80]}",
            name=self.name,
            hint="have this hloipu write it again",
        )

    def pooled(self, pool: str, number: object) -> Any:
        """Return a record by its number."""
        rows = self.pools.get(pool, ())
        if type(number) is not int or not 0 <= number < len(rows):
            raise self.refused(f"a number below {len(rows)} of {pool}", number)
        return rows[number]

    def enter(self) -> None:
        """Enter an inner block; ArtefactError E4010 where that is too deep."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise self.refused(f"at most {MOST_BLOCKS} blocks within each other", self.blocks)


LONGEST_TEXT = 2**20
_INTEGER_BOUND = 2**63
_FLOAT = re.compile(r"-?(?:inf|nan|0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4})")


class Coder(NamedTuple):
    """Writes values of one annotation, and reads them."""

    write: Callable[[Any, Writing], Json]
    read: Callable[[Json, Reading], Any]


POOLS: dict[str, Any] = {
    "tiles": Tiles,
    "spans": Spans,
    "mappings": Mapping,
    "expressions": Expression,
    "codelets": Codelet,
}
"""Pool -> annotation; a pool's records may name records of the pools before it."""


@lru_cache(maxsize=512)
def coder_of(annotation: Any) -> Coder:
    """Return the coder of an annotation; values of pooled types are written as their numbers."""
    for pool, pooled in POOLS.items():
        if annotation == pooled:
            return _pooled(pool)
    return own_coder(annotation)


@lru_cache(maxsize=512)
def own_coder(annotation: Any) -> Coder:
    """Return the coder of an annotation that writes the value itself, also if it is pooled."""
    origin = get_origin(annotation)
    if annotation is Codelet:
        return Coder(
            lambda value, writing: [value.name, *_codelet_coder(value.name).write(value, writing)],
            _read_codelet,
        )
    if annotation in _SCALARS:
        return _scalar(annotation)
    if annotation is float:
        return Coder(lambda value, _: float(value).hex(), _read_float)
    if origin is Literal:
        return _one_of(get_args(annotation), lambda value: value)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of(tuple(annotation), lambda value: value.value)
    if origin is tuple:
        return _tuple(get_args(annotation))
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    if annotation is Sequence:
        return _block(_record(Sequence))
    return _record(annotation)


@cache
def all_codelets() -> dict[str, type[Codelet]]:
    """Return all codelets by name: their modules register them when they are imported."""
    for module in pkgutil.walk_packages(codelets.__path__, f"{codelets.__name__}."):
        importlib.import_module(module.name)
    return CODELETS


# --- scalars --------------------------------------------------------------------------------------

_SCALARS = {int: "an integer", bool: "true or false", str: "a text", types.NoneType: "null"}


def _scalar(kind: Any) -> Coder:
    expected = _SCALARS[kind]

    def read(data: Any, reading: Reading) -> Any:
        if type(data) is not kind:
            raise reading.refused(expected, data)
        if kind is int and not -_INTEGER_BOUND <= data < _INTEGER_BOUND:
            raise reading.refused("an integer of 64 bits", data)
        if kind is str and len(data) > LONGEST_TEXT:
            raise reading.refused(f"a text of at most {LONGEST_TEXT} characters", data)
        if kind is str and not data.isprintable():
            raise reading.refused("a text without control characters", data)
        return data

    return Coder(lambda value, _: value, read)


def _read_float(data: Json, reading: Reading) -> float:
    """Read a float in hexadecimal: JSON has no infinities, and digits are not exact."""
    if not isinstance(data, str) or not _FLOAT.fullmatch(data):
        raise reading.refused("a float in hexadecimal", data)
    return float.fromhex(data)


def _one_of(values: tuple[Any, ...], plain: Callable[[Any], Json]) -> Coder:
    by_plain = {plain(value): value for value in values}

    def read(data: Json, reading: Reading) -> Any:
        if not isinstance(data, str) or data not in by_plain:
            raise reading.refused(f"one of {', '.join(map(str, by_plain))}", data)
        return by_plain[data]

    return Coder(lambda value, _: plain(value), read)


# --- composites -----------------------------------------------------------------------------------


def _tuple(arguments: tuple[Any, ...]) -> Coder:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _integers() if arguments[0] is int else _list(coder_of(arguments[0]))
    return _fields(tuple, [coder_of(argument) for argument in arguments], "a list")


def _list(item: Coder) -> Coder:
    write_item, read_item = item

    def write(value: Any, writing: Writing) -> Json:
        return [write_item(value_or_data, writing) for value_or_data in value]

    def read(data: Json, reading: Reading) -> Any:
        if type(data) is not list:
            raise reading.refused("a list", data)
        return tuple([read_item(value_or_data, reading) for value_or_data in data])

    return Coder(write, read)


def _integers() -> Coder:
    """Return the coder of a tuple of integers: most of what a file holds."""
    careful = _list(_scalar(int))

    def read(data: Json, reading: Reading) -> Any:
        plain = type(data) is list and all(type(number) is int for number in data)
        if plain and (not data or -_INTEGER_BOUND <= min(data) <= max(data) < _INTEGER_BOUND):
            return tuple(data)
        return careful.read(data, reading)

    return Coder(lambda value, _: list(value), read)


def _fields(make: Callable[..., Any], coders: list[Coder], expected: str) -> Coder:
    """Return the coder of a list with a coder of its own for each place."""
    writers, readers = [c.write for c in coders], [c.read for c in coders]
    count = len(coders)

    def write(value: Any, writing: Writing) -> Json:
        return [w(part, writing) for w, part in zip(writers, value, strict=True)]

    def read(data: Json, reading: Reading) -> Any:
        if type(data) is not list or len(data) != count:
            raise reading.refused(f"{expected} of {count}", data)
        fields = [r(part, reading) for r, part in zip(readers, data, strict=True)]
        return make(fields) if make is tuple else make(*fields)

    return Coder(write, read)


def _record(kind: Any) -> Coder:
    """Return the coder of a frozen dataclass or a NamedTuple."""
    hints = get_type_hints(kind)
    is_tuple = issubclass(kind, tuple)
    names = list(kind._fields) if is_tuple else [field.name for field in fields(kind)]
    plain = _fields(kind, [coder_of(hints[name]) for name in names], kind.__name__)
    if is_tuple:
        return plain

    def write(value: Any, writing: Writing) -> Json:
        return plain.write([getattr(value, name) for name in names], writing)

    return Coder(write, plain.read)


def _block(plain: Coder) -> Coder:
    """Return a coder that counts how deep blocks of steps lie within each other."""

    def write(value: Any, writing: Writing) -> Json:
        writing.enter()
        written = plain.write(value, writing)
        writing.blocks -= 1
        return written

    def read(data: Json, reading: Reading) -> Any:
        reading.enter()
        block = plain.read(data, reading)
        reading.blocks -= 1
        return block

    return Coder(write, read)


def _union(members: tuple[Any, ...]) -> Coder:
    """Return the coder of scalars that JSON tells apart, and of records told apart by name."""
    scalars = {kind: _scalar(kind) for kind in members if kind in _SCALARS}
    records = {kind.__name__: kind for kind in members if kind not in _SCALARS}
    only = coder_of(*records.values()) if len(records) == 1 else None
    expected = " or ".join([*(_SCALARS[kind] for kind in scalars), *records])

    def write(value: Any, writing: Writing) -> Json:
        kind: Any = type(value)
        if kind in scalars:
            return value
        if only:
            return only.write(value, writing)
        return [kind.__name__, *coder_of(kind).write(value, writing)]

    def read(data: Json, reading: Reading) -> Any:
        scalar = scalars.get(type(data))
        if scalar:
            return scalar.read(data, reading)
        if only:
            return only.read(data, reading)
        kind = records.get(data[0]) if type(data) is list and _is_name(data) else None
        if kind is None:
            raise reading.refused(expected, data)
        return coder_of(kind).read(data[1:], reading)

    return Coder(write, read)


def _is_name(data: list[Any]) -> bool:
    return bool(data) and type(data[0]) is str


# --- pools and codelets ---------------------------------------------------------------------------


def _pooled(pool: str) -> Coder:
    def write(value: Any, writing: Writing) -> Json:
        number = writing.seen(value)
        if number is None:
            number = writing.number(pool, value, own_coder(POOLS[pool]).write(value, writing))
        return number

    return Coder(write, lambda data, reading: reading.pooled(pool, data))


def _read_codelet(data: Json, reading: Reading) -> Codelet:
    known = type(data) is list and _is_name(data) and data[0] in all_codelets()
    if not known:
        raise reading.refused("a codelet", data[0] if type(data) is list and data else data)
    codelet: Codelet = _codelet_coder(data[0]).read(data[1:], reading)
    return codelet


@lru_cache(maxsize=512)
def _codelet_coder(name: str) -> Coder:
    return _record(all_codelets()[name])
