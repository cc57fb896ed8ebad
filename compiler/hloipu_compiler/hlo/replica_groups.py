"""`replica_groups=`: which participants of a collective work together, in its three forms.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseCollectiveDeviceListBase),
`xla/hlo/ir/replica_group.cc`.
"""

from math import prod

from hloipu_compiler.hlo.device_order import MOST_EXPANDED, read_iota, take_tiles
from hloipu_compiler.hlo.mesh import AxisRef, Mesh, check_disjoint, is_mesh, take_axes, take_mesh
from hloipu_compiler.hlo.text_fault import TextFault
from hloipu_compiler.hlo.value_cursor import Cursor
from hloipu_compiler.ir.attributes import ReplicaGroups

_CODE = "E0152"


def read_replica_groups(text: str) -> ReplicaGroups:
    """Read `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['a'=4] {'a'}`; TextFault where XLA refuses.

    Groups are always listed in full, so a form of more than 2**20 participants is refused too.
    """
    cursor = Cursor(text, _CODE)
    if cursor.at("{"):
        groups = _listed(cursor)
        cursor.finish()
        return ReplicaGroups(groups)
    if is_mesh(cursor):
        flat, size = _of_mesh(cursor)
    elif cursor.at("["):
        flat, size = _of_iota(cursor)
    else:
        raise cursor.fault(expected="{{0,1},…}, [groups,size]<=[…] or mesh[…] {…}")
    cursor.finish()
    grouped = tuple(flat[i : i + size] for i in range(0, len(flat), size))
    return ReplicaGroups(grouped, text.strip())


def _listed(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    cursor.expect("{")
    groups: list[tuple[int, ...]] = []
    while not cursor.at("}"):
        if groups:
            cursor.expect(",")
        groups.append(cursor.integers("{", "}"))
    cursor.expect("}")
    return tuple(groups)


def _of_iota(cursor: Cursor) -> tuple[tuple[int, ...], int]:
    start = cursor.start
    tiles, is_iota = take_tiles(cursor)
    if not is_iota or len(tiles) != 2:
        raise TextFault(
            _CODE, "an iota of groups has two sizes and `<=`", start, expected="[groups,size]<=[…]"
        )
    order = read_iota(cursor, prod(tiles))
    _check_count(prod(tiles), start)
    return order.devices(prod(tiles)), tiles[1]


def _check_count(count: int, start: int) -> None:
    if count > MOST_EXPANDED:
        raise TextFault(
            _CODE, f"{count} participants are too many", start, expected=f"at most {MOST_EXPANDED}"
        )


def _of_mesh(cursor: Cursor) -> tuple[tuple[int, ...], int]:
    """Read the mesh form: devices that differ along the named axes only form a group."""
    start = cursor.start
    mesh = take_mesh(cursor)
    axes = take_axes(cursor, mesh)
    check_disjoint(cursor, start, mesh, [axes])
    _check_count(mesh.device_count, start)
    if mesh.device_count == 0:
        return (), 1
    places, size = _places_by_group(mesh, axes)
    devices = mesh.devices.devices(mesh.device_count)
    return tuple(devices[place] for place in places), size


def _places_by_group(mesh: Mesh, axes: tuple[AxisRef, ...]) -> tuple[list[int], int]:
    """Return the places of the mesh, group after group, and the size of a group.

    Each named part of an axis is a factor of the place with its own stride. What the named parts
    leave over are the factors between them; those run over the groups, the named ones inside, in
    the order in which they are written.
    """
    inner: list[tuple[int, int]] = []
    outer: list[tuple[int, int]] = []
    for number, whole in enumerate(mesh.axis_sizes):
        below = prod(mesh.axis_sizes[number + 1 :])
        done = 1
        parts = sorted((a for a in axes if a.axis == number), key=lambda a: a.pre_size)
        for part in parts:
            gap = part.pre_size // done
            outer.append((gap, below * (whole // part.pre_size)))
            done = part.pre_size * part.extent(mesh)
        outer.append((whole // done, below))
    for axis in axes:
        whole, extent = mesh.axis_sizes[axis.axis], axis.extent(mesh)
        below = prod(mesh.axis_sizes[axis.axis + 1 :])
        inner.append((extent, below * (whole // (axis.pre_size * extent))))
    places = [0]
    for size, stride in outer + inner:
        if size > 1:
            steps = range(0, size * stride, stride)
            places = [base + step for base in places for step in steps]
    return places, prod(size for size, _ in inner)
