"""The order of devices in a tile assignment: a list, or an iota reshaped and transposed.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseIotaTileAssignmentArray),
`xla/hlo/ir/tile_assignment.h`.
"""

from math import prod

from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_runtime.frozen import dataclass

MOST_EXPANDED = 2**20
"""Devices that are listed at most; the text of an iota is a few characters at any count."""


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """Device at each place: `listed`, else iota(reshape) transposed, else plain."""

    listed: tuple[int, ...] = ()
    reshape: tuple[int, ...] = ()
    transpose: tuple[int, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether devices stand in their own order, 0, 1, 2 and so on."""
        return not self.listed and len(self.reshape) <= 1

    def order_text(self) -> str:
        """Return the order as XLA prints it: `0,2,1,3`, `[8]` or `[4,2]T(1,0)`."""
        if self.listed:
            return ",".join(map(str, self.listed))
        sizes = ",".join(map(str, self.reshape))
        if len(self.reshape) <= 1:
            return f"[{sizes}]"
        return f"[{sizes}]T({','.join(map(str, self.transpose))})"

    def devices(self, count: int) -> tuple[int, ...]:
        """Return the devices in order; ValueError beyond `MOST_EXPANDED`."""
        if self.listed:
            return self.listed
        if count > MOST_EXPANDED:
            raise ValueError(f"{count} devices are too many to list")
        if self.is_plain:
            return tuple(range(count))
        strides = strides_of(self.reshape)
        order = [0]
        for axis in self.transpose:
            if self.reshape[axis] == 1:
                continue
            steps = range(0, strides[axis] * self.reshape[axis], strides[axis])
            order = [base + step for base in order for step in steps]
        return tuple(order)


def strides_of(sizes: tuple[int, ...]) -> list[int]:
    """Return the row-major stride of each dimension."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 1, 0, -1):
        strides[i - 1] = strides[i] * sizes[i]
    return strides


PLAIN_ORDER = DeviceOrder()


def read_iota(cursor: Cursor, count: int) -> DeviceOrder:
    """Read `[4,2]T(1,0)`, whose product must be `count`; one dimension needs no transpose."""
    start = cursor.start
    reshape = _sizes(cursor)
    if prod(reshape) != count or any(size < 1 for size in reshape):
        raise TextFault(
            cursor.code, f"the iota counts {prod(reshape)} devices", start, expected=f"{count}"
        )
    if len(reshape) == 1:
        return DeviceOrder(reshape=reshape)
    if cursor.kind is not Kind.WORD or cursor.text != "T":
        raise cursor.fault(expected="T(…), since the iota has several dimensions")
    cursor.advance()
    start = cursor.start
    transpose = cursor.integers("(", ")")
    if sorted(transpose) != list(range(len(reshape))):
        raise TextFault(
            cursor.code, f"T{transpose} is not a permutation of {len(reshape)} dimensions", start
        )
    return DeviceOrder(reshape=reshape, transpose=transpose)


def _sizes(cursor: Cursor) -> tuple[int, ...]:
    start = cursor.start
    sizes = cursor.integers("[", "]")
    if not sizes:
        raise TextFault(cursor.code, "the list of sizes is empty", start, expected="[n,…]")
    return sizes


def take_tiles(cursor: Cursor) -> tuple[tuple[int, ...], bool]:
    """Read `[4,2]` and the `<=` after it; return the sizes and whether an iota follows."""
    start = cursor.start
    tiles = _sizes(cursor)
    if any(size < 1 for size in tiles) or prod(tiles) > 2**31:
        raise TextFault(cursor.code, f"no assignment has the tiles {tiles}", start)
    return tiles, cursor.take("<=")
