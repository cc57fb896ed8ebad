"""`replica_groups=`: which participants of a collective work together, in its three forms.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseCollectiveDeviceListBase),
`xla/hlo/ir/replica_group.cc`.
"""

from functools import lru_cache
from math import prod

from hloipu_compiler.hlo.attributes.mesh import (
    MOST_EXPANDED,
    AxisRef,
    DeviceOrder,
    Mesh,
    check_disjoint,
    is_mesh,
    read_iota,
    strides_of,
    take_axes,
    take_mesh,
    take_tiles,
)
from hloipu_compiler.hlo.attributes.value_cursor import Cursor
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attributes import ReplicaGroups
from hloipu_runtime.frozen import dataclass

_CODE = "E0152"


class FormedGroups(ReplicaGroups):
    """Groups in iota or mesh form; the list is made when asked for and not kept.

    A form of thirty characters may stand for a million participants, in every line of a text.
    """

    __slots__ = ()

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "text", text)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The full list of groups."""
        return _expanded(self.text)

    @property
    def group_size(self) -> int:
        """Members of each group, without making the list."""
        return _form(Cursor(self.text, _CODE)).size if self.participant_count else 0

    @property
    def participant_count(self) -> int:
        """Members of all groups together, without making the list."""
        return _form(Cursor(self.text, _CODE)).count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormedGroups) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type["FormedGroups"], tuple[str]]:
        return FormedGroups, (self.text,)

    def __repr__(self) -> str:
        return f"FormedGroups({self.text!r})"


def read_replica_groups(text: str) -> ReplicaGroups:
    """Read `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['a'=4] {'a'}`; TextFault where XLA refuses.

    A form of more than 2**20 participants is refused too: whoever runs it needs the list.
    """
    cursor = Cursor(text, _CODE)
    if cursor.at("{"):
        groups = _listed(cursor)
        cursor.finish()
        return ReplicaGroups(groups)
    _form(cursor)
    return FormedGroups(text.strip())


@lru_cache(maxsize=8)
def _expanded(text: str) -> tuple[tuple[int, ...], ...]:
    form = _form(Cursor(text, _CODE))
    devices = form.order.devices(form.count)
    places = form.places()
    flat = devices if places is None else tuple([devices[place] for place in places])
    return tuple(flat[i : i + form.size] for i in range(0, len(flat), form.size))


@dataclass(frozen=True, slots=True)
class _Form:
    """An iota or mesh form: `count` devices in an order, `size` to a group."""

    count: int
    size: int
    order: DeviceOrder
    mesh: Mesh | None = None
    axes: tuple[AxisRef, ...] = ()

    def places(self) -> list[int] | None:
        """Return the places of the mesh, group after group; None where they stand in order."""
        return None if self.mesh is None else _places_by_group(self.mesh, self.axes)


def _form(cursor: Cursor) -> _Form:
    start = cursor.start
    if is_mesh(cursor):
        form = _of_mesh(cursor)
    elif cursor.at("["):
        form = _of_iota(cursor)
    else:
        raise cursor.fault(expected="{{0,1},…}, [groups,size]<=[…] or mesh[…] {…}")
    cursor.finish()
    if form.count > MOST_EXPANDED:
        raise TextFault(
            _CODE, f"{form.count} participants are too many", start,
            expected=f"at most {MOST_EXPANDED}",
        )  # fmt: skip
    return form


def _listed(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    return cursor.items("{", "}", lambda: cursor.integers("{", "}"))


def _of_iota(cursor: Cursor) -> _Form:
    start = cursor.start
    tiles, is_iota = take_tiles(cursor)
    if not is_iota or len(tiles) != 2:
        raise TextFault(
            _CODE, "an iota of groups has two sizes and `<=`", start, expected="[groups,size]<=[…]"
        )
    return _Form(prod(tiles), tiles[1], read_iota(cursor, prod(tiles)))


def _of_mesh(cursor: Cursor) -> _Form:
    """Read the mesh form: devices that differ along the named axes only form a group."""
    start = cursor.start
    mesh = take_mesh(cursor)
    axes = take_axes(cursor, mesh)
    check_disjoint(cursor, start, mesh, [axes])
    size = prod(axis.extent(mesh) for axis in axes)
    if mesh.device_count == 0:
        return _Form(0, 1, mesh.devices)
    return _Form(mesh.device_count, size, mesh.devices, mesh, axes)


def _places_by_group(mesh: Mesh, axes: tuple[AxisRef, ...]) -> list[int]:
    """Return the places of the mesh, group after group.

    Each named part of an axis is a factor of the place with its own stride. What the named parts
    leave over are the factors between them; those run over the groups, the named ones inside, in
    the order in which they are written.
    """
    strides = strides_of(mesh.axis_sizes)
    parts: dict[int, list[AxisRef]] = {}
    for axis in axes:
        parts.setdefault(axis.axis, []).append(axis)
    outer: list[tuple[int, int]] = []
    for number, (axis_size, below) in enumerate(zip(mesh.axis_sizes, strides, strict=True)):
        done = 1
        for part in sorted(parts.get(number, ()), key=lambda a: a.pre_size):
            outer.append((part.pre_size // done, below * (axis_size // part.pre_size)))
            done = part.pre_size * part.extent(mesh)
        outer.append((axis_size // done, below))
    inner = []
    for axis in axes:
        stride_after = mesh.axis_sizes[axis.axis] // (axis.pre_size * axis.extent(mesh))
        inner.append((axis.extent(mesh), strides[axis.axis] * stride_after))
    places = [0]
    for size, stride in outer + inner:
        if size > 1:
            steps = range(0, size * stride, stride)
            places = [base + step for base in places for step in steps]
    return places
