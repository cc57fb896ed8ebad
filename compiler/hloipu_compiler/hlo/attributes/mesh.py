"""Meshes of named axes, and the order of devices in a tile assignment.

V3 shardings and the mesh form of replica groups write meshes; the order is a list, or an iota
reshaped and transposed. Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseMesh,
ParseAxisRef, ParseIotaTileAssignmentArray), `xla/hlo/ir/mesh_and_axis.cc`, `tile_assignment.h`.
What XLA aborts on (repeated names, sizes below 1, device ids that are no permutation) is a fault
here.
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod

from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.strings import quote
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


MOST_DEVICES = 2**31
"""Devices that a text may claim; descriptors stay small whatever it says, but products must fit."""


@dataclass(frozen=True)
class Mesh:
    """Axes by name and size, and the order of devices along them; maximal: one device, no axes."""

    axis_names: tuple[str, ...] = ()
    axis_sizes: tuple[int, ...] = ()
    devices: DeviceOrder = PLAIN_ORDER
    is_maximal: bool = False

    @cached_property
    def axis_position(self) -> dict[str, int]:
        """Position of each axis by its name."""
        return {name: i for i, name in enumerate(self.axis_names)}

    @property
    def device_count(self) -> int:
        """Number of devices; 0 for the empty mesh."""
        return prod(self.axis_sizes) if self.axis_sizes else len(self.devices.listed)

    def __str__(self) -> str:
        if self.is_maximal:
            return f"maximal_mesh[device_id={self.devices.listed[0]}]"
        pairs = zip(self.axis_names, self.axis_sizes, strict=True)
        axes = ",".join(f"{_single_quoted(name)}={size}" for name, size in pairs)
        order = "" if self.devices.is_plain else f", device_ids=({self.devices.order_text()})"
        return f"mesh[{axes}]{order}"


@dataclass(frozen=True, slots=True)
class AxisRef:
    """An axis of a mesh by its position, whole, or the part of `size` after `pre_size`."""

    axis: int
    pre_size: int = 1
    size: int = 0
    """0: the whole axis."""

    def extent(self, mesh: Mesh) -> int:
        """Return the number of devices along it."""
        return self.size or mesh.axis_sizes[self.axis]

    def text(self, mesh: Mesh) -> str:
        """Return it as XLA prints it."""
        part = f":({self.pre_size}){self.size}" if self.size else ""
        return f"{_single_quoted(mesh.axis_names[self.axis])}{part}"


def _single_quoted(name: str) -> str:
    return f"'{quote(name)[1:-1]}'"


def is_mesh(cursor: Cursor) -> bool:
    """Whether a mesh starts at the cursor."""
    return cursor.kind is Kind.WORD and cursor.text in ("mesh", "maximal_mesh")


def take_mesh(cursor: Cursor) -> Mesh:
    """Read a mesh: `mesh['a'=2,'b'=4]`, with device ids or without, or `maximal_mesh[…]`."""
    if cursor.text == "maximal_mesh":
        return _take_maximal(cursor)
    cursor.advance()
    start = cursor.start
    cursor.expect("[")
    names: list[str] = []
    sizes: list[int] = []
    while not cursor.at("]") or names:
        names.append(cursor.string())
        cursor.expect("=")
        sizes.append(cursor.integer())
        if not cursor.take(","):
            break
    cursor.expect("]")
    _check_axes(cursor, start, names, sizes)
    devices = PLAIN_ORDER
    if names and _device_ids_follow(cursor):
        devices = _take_device_ids(cursor, prod(sizes))
    return Mesh(tuple(names), tuple(sizes), devices)


def _take_maximal(cursor: Cursor) -> Mesh:
    cursor.advance()
    cursor.expect("[")
    if cursor.key() != "device_id":
        raise cursor.fault(expected="device_id=")
    device = cursor.integer()
    cursor.expect("]")
    return Mesh(devices=DeviceOrder(listed=(device,)), is_maximal=True)


def _check_axes(cursor: Cursor, start: int, names: list[str], sizes: list[int]) -> None:
    if len(set(names)) != len(names):
        raise TextFault(cursor.code, "two axes of the mesh have one name", start)
    if any(size < 1 for size in sizes) or prod(sizes) > MOST_DEVICES:
        raise TextFault(
            cursor.code, "a mesh of such sizes cannot be", start, expected="sizes from 1"
        )


def _device_ids_follow(cursor: Cursor) -> bool:
    if not cursor.at(","):
        return False
    ahead = Cursor(cursor.source, cursor.code, cursor.start + 1)
    return ahead.kind is Kind.KEY and ahead.text == "device_ids="


def _take_device_ids(cursor: Cursor, count: int) -> DeviceOrder:
    cursor.expect(",")
    cursor.key()
    start = cursor.start
    if cursor.take("("):
        if cursor.at("["):
            order = read_iota(cursor, count)
            cursor.expect(")")
            return order
        listed = [cursor.integer()]
        while cursor.take(","):
            listed.append(cursor.integer())
        cursor.expect(")")
        if (
            len(listed) == count
            and sorted(listed) == list(range(count))
            and listed != sorted(listed)
        ):
            return DeviceOrder(listed=tuple(listed))
    raise TextFault(
        cursor.code,
        "the device ids do not fit the mesh",
        start,
        expected=f"another order of 0 to {count - 1} than the plain one",
    )


def take_axes(cursor: Cursor, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Read `{'a', 'b':(1)2}`; there may be none."""
    return cursor.items("{", "}", lambda: take_axis(cursor, mesh))


def take_axis(cursor: Cursor, mesh: Mesh) -> AxisRef:
    """Read one reference to an axis, by name or by number, whole or a part."""
    start = cursor.start
    name = cursor.string()
    if name in mesh.axis_position:
        axis = mesh.axis_position[name]
    elif name.isascii() and name.isdigit() and len(name) < 6 and int(name) < len(mesh.axis_names):
        axis = int(name)
    else:
        raise TextFault(
            cursor.code, f"`{name}` is not an axis of the mesh", start, expected=str(mesh)
        )
    if not cursor.take(":"):
        return AxisRef(axis)
    cursor.expect("(")
    pre_size = cursor.integer()
    cursor.expect(")")
    size = cursor.integer()
    axis_size = mesh.axis_sizes[axis]
    if pre_size < 1 or size < 2 or size >= axis_size or axis_size % (pre_size * size):
        raise TextFault(
            cursor.code,
            f"no part of size {size} after {pre_size} divides an axis of {axis_size}",
            start,
        )
    return AxisRef(axis, pre_size, size)


def check_disjoint(
    cursor: Cursor, start: int, mesh: Mesh, lists: Sequence[tuple[AxisRef, ...]]
) -> None:
    """Check that no part of an axis is used twice, in one list or in several."""
    used_by_axis: dict[int, list[tuple[int, int]]] = {}
    for axis in (axis for axes in lists for axis in axes):
        low, high = axis.pre_size, axis.pre_size * axis.extent(mesh)
        for other_low, other_high in used_by_axis.setdefault(axis.axis, []):
            nested = max(low, other_low) % min(high, other_high) == 0
            if (low < other_high and other_low < high) or not nested:
                name = mesh.axis_names[axis.axis]
                raise TextFault(cursor.code, f"axis `{name}` is used twice", start)
        used_by_axis[axis.axis].append((low, high))
