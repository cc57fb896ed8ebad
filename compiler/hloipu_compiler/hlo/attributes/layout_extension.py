"""Layout text after the `:`: tiles, paddings, element sizes, memory spaces.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseLayout), `xla/layout.cc`.
"""

import re
from functools import lru_cache

from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_runtime.frozen import dataclass

_CODE = "E0157"

COMBINED = -(2**63)
"""A tile size written `*`: the dimension is combined with the next more minor one."""

_LEVELS = frozenset("DCSH")
_UNSIGNED = re.compile(r"u(?:1|2|4|8|16|32|64)")


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """One `SC(dimension:index,…)`: where a dimension is split across memories."""

    dimension: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayoutExtension:
    """The extension of a layout; each field's default is what leaving it out means."""

    dimension_levels: tuple[str, ...] = ()
    """Sparse levels such as `D`, `C+~`; XLA reads and drops them."""
    tiles: tuple[tuple[int, ...], ...] = ()
    tail_padding_elements: int = 1
    index_type: str = ""
    pointer_type: str = ""
    element_bits: int = 0
    """Width of an element in memory; 0: that of its type."""
    memory_space: int = 0
    """0 is the device's own memory, 5 the host's."""
    splits: tuple[SplitConfig, ...] = ()
    dynamic_metadata_bytes: int = 0

    def __str__(self) -> str:
        tiles = "".join(f"({','.join(map(_tile_size, tile))})" for tile in self.tiles)
        splits = "".join(f"({s.dimension}:{','.join(map(str, s.indices))})" for s in self.splits)
        parts = (
            f"D({','.join(self.dimension_levels)})" if self.dimension_levels else "",
            f"T{tiles}" if tiles else "",
            f"L({self.tail_padding_elements})" if self.tail_padding_elements != 1 else "",
            f"#({self.index_type})" if self.index_type else "",
            f"*({self.pointer_type})" if self.pointer_type else "",
            f"E({self.element_bits})" if self.element_bits else "",
            f"S({self.memory_space})" if self.memory_space else "",
            f"SC{splits}" if splits else "",
            f"M({self.dynamic_metadata_bytes})" if self.dynamic_metadata_bytes else "",
        )
        return "".join(parts)


def _tile_size(size: int) -> str:
    return "*" if size == COMBINED else str(size)


@lru_cache(maxsize=1024)
def read_layout_extension(text: str) -> LayoutExtension:
    """Read the text after a layout's `:`, such as `T(8,128)(2,1)S(5)`; TextFault where wrong.

    The parts come in one fixed order, each at most once. Results are remembered by their text.
    """
    cursor = Cursor(text, _CODE)
    extension = LayoutExtension(
        dimension_levels=cursor.items("(", ")", lambda: _level(cursor))
        if _word(cursor, "D")
        else (),
        tiles=_tiles(cursor) if _word(cursor, "T") else (),
        tail_padding_elements=_number(cursor) if _word(cursor, "L") else 1,
        index_type=_type(cursor) if cursor.take("#") else "",
        pointer_type=_type(cursor) if cursor.take("*") else "",
        element_bits=_number(cursor) if _word(cursor, "E") else 0,
        memory_space=_number(cursor) if _word(cursor, "S") else 0,
        splits=_splits(cursor) if _word(cursor, "SC") else (),
        dynamic_metadata_bytes=_number(cursor) if _word(cursor, "M") else 0,
    )
    if cursor.kind is not Kind.END:
        raise cursor.fault(expected="D(…)T(…)L(n)#(type)*(type)E(n)S(n)SC(…)M(n), in this order")
    return extension


def _word(cursor: Cursor, word: str) -> bool:
    if cursor.kind is not Kind.WORD or cursor.text != word:
        return False
    cursor.advance()
    return True


def _number(cursor: Cursor) -> int:
    cursor.expect("(")
    value = cursor.integer()
    cursor.expect(")")
    return value


def _type(cursor: Cursor) -> str:
    cursor.expect("(")
    name = cursor.text
    if cursor.kind is not Kind.WORD or not _UNSIGNED.fullmatch(name):
        raise cursor.fault(expected="an unsigned integer type")
    cursor.advance()
    cursor.expect(")")
    return name


def _tiles(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    tiles = [_tile(cursor)]
    while cursor.at("("):
        tiles.append(_tile(cursor))
    return tuple(tiles)


def _tile(cursor: Cursor) -> tuple[int, ...]:
    return cursor.items("(", ")", lambda: COMBINED if cursor.take("*") else cursor.integer())


def _splits(cursor: Cursor) -> tuple[SplitConfig, ...]:
    splits: list[SplitConfig] = []
    while cursor.at("(") or not splits:
        cursor.expect("(")
        dimension = cursor.integer()
        splits.append(SplitConfig(dimension, cursor.integers(":", ")")))
    return tuple(splits)


def _level(cursor: Cursor) -> str:
    level = cursor.text
    if cursor.kind is not Kind.WORD or level not in _LEVELS:
        raise cursor.fault(expected="a level type: D, C, S or H")
    cursor.advance()
    return level + ("+" if cursor.take("+") else "") + ("~" if cursor.take("~") else "")
