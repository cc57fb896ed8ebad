"""Shardings by the axes of a mesh (V3, 2026): `{mesh['a'=2,'b'=4], [{'a'}, {?}], manual={'b'}}`.

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (ParseSingleSharding),
`xla/hlo/ir/named_sharding.cc`.
"""

from math import prod

from hloipu_compiler.hlo.attributes.mesh import (
    AxisRef,
    Mesh,
    check_disjoint,
    take_axes,
    take_axis,
    take_mesh,
)
from hloipu_compiler.hlo.attributes.metadata import OpMetadata, take_metadata_list
from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_runtime.frozen import dataclass

_REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class DimensionSharding:
    """The axes that one dimension is split along, major first; `?` leaves more open."""

    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True
    priority: int = 0
    """In which round of propagation it is seen; Shardy's texts state it, V3 shardings do not."""


@dataclass(frozen=True, slots=True)
class NamedSharding:
    """A sharding over a mesh; without dimensions it says one thing of the whole value."""

    mesh: Mesh
    dimensions: tuple[DimensionSharding, ...] = ()
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    manual: tuple[AxisRef, ...] = ()
    reduction: str = "sum"
    """How unreduced parts combine: sum, max or min."""
    metadata: tuple[OpMetadata, ...] = ()

    @property
    def axes(self) -> tuple[AxisRef, ...]:
        """All axes that it names."""
        dividing = [axis for dimension in self.dimensions for axis in dimension.axes]
        return (*dividing, *self.replicated, *self.unreduced, *self.manual)

    @property
    def data_tiles(self) -> tuple[int, ...]:
        """Tiles along each dimension of the value."""
        return tuple(prod(a.extent(self.mesh) for a in d.axes) for d in self.dimensions)

    def __str__(self) -> str:
        parts = [str(self.mesh)]
        if not self.mesh.is_maximal:
            parts += self._whole() or self._parts()
        if self.metadata:
            parts.append(f"metadata={{{', '.join(map(str, self.metadata))}}}")
        return f"{{{', '.join(parts)}}}"

    def _whole(self) -> list[str]:
        """Return the short form of a sharding that says one thing of the whole value."""
        axes = len(self.mesh.axis_sizes)
        if self.dimensions or self.replicated:
            return []
        if not self.unreduced and not self.manual:
            return ["replicated"]
        if len(self.manual) == axes and not self.unreduced:
            return ["manual"]
        if self.unreduced and not self.manual:
            reduction = "" if self.reduction == "sum" else f"={self.reduction}"
            if len(self.unreduced) == axes:
                return [f"unreduced{reduction}"]
            return [f"unreduced{reduction or '='}{self._axes(self.unreduced)}"]
        return []

    def _parts(self) -> list[str]:
        dimensions = []
        for dimension in self.dimensions:
            names = [axis.text(self.mesh) for axis in dimension.axes]
            names += [] if dimension.is_closed else ["?"]
            dimensions.append(f"{{{', '.join(names)}}}")
        parts = [f"[{', '.join(dimensions)}]"]
        if self.replicated:
            parts.append(f"replicated={self._axes(self.replicated)}")
        if self.unreduced:
            reduction = "" if self.reduction == "sum" else self.reduction
            parts.append(f"unreduced={reduction}{self._axes(self.unreduced)}")
        if self.manual:
            parts.append(f"manual={self._axes(self.manual)}")
        return parts

    def _axes(self, axes: tuple[AxisRef, ...]) -> str:
        return f"{{{', '.join(axis.text(self.mesh) for axis in axes)}}}"


def take_named_sharding(cursor: Cursor) -> NamedSharding:
    """Read from the mesh on, to and with the closing brace."""
    start = cursor.start
    mesh = take_mesh(cursor)
    if mesh.is_maximal:
        metadata = _take_metadata(cursor)
        cursor.expect("}")
        return NamedSharding(mesh, metadata=metadata)
    cursor.take(",")
    sharding = _take_whole(cursor, mesh) or _take_dimensions(cursor, mesh)
    cursor.expect("}")
    lists = [d.axes for d in sharding.dimensions]
    lists += [sharding.replicated, sharding.unreduced, sharding.manual]
    check_disjoint(cursor, start, mesh, lists)
    return sharding


def _take_metadata(cursor: Cursor) -> tuple[OpMetadata, ...]:
    if not cursor.take(","):
        return ()
    if cursor.key() != "metadata":
        raise cursor.fault(expected="metadata=")
    return tuple(take_metadata_list(cursor))


def _take_whole(cursor: Cursor, mesh: Mesh) -> NamedSharding | None:
    """Read `replicated`, `manual` or `unreduced`; None where dimensions follow."""
    word = cursor.text.removesuffix("=")
    every = tuple(AxisRef(i) for i in range(len(mesh.axis_sizes)))
    if cursor.kind is Kind.WORD and word in ("replicated", "manual"):
        cursor.advance()
        manual = every if word == "manual" else ()
        return NamedSharding(mesh, manual=manual, metadata=_take_metadata(cursor))
    if word != "unreduced" or cursor.kind not in (Kind.WORD, Kind.KEY):
        return None
    assigned = cursor.kind is Kind.KEY
    cursor.advance()
    assigned = cursor.take("=") or assigned
    reduction = "sum"
    if assigned and not cursor.at("{"):
        reduction = _take_reduction(cursor)
    axes = take_axes(cursor, mesh) if cursor.at("{") else every
    return NamedSharding(mesh, unreduced=axes, reduction=reduction, metadata=_take_metadata(cursor))


def _take_reduction(cursor: Cursor) -> str:
    word = cursor.text.removesuffix("=")
    if cursor.kind not in (Kind.WORD, Kind.KEY) or word not in _REDUCTIONS:
        raise cursor.fault(expected="sum, max or min")
    cursor.advance()
    return word


def _take_dimensions(cursor: Cursor, mesh: Mesh) -> NamedSharding:
    dimensions = cursor.items("[", "]", lambda: _take_dimension(cursor, mesh))
    lists: dict[str, tuple[AxisRef, ...]] = {}
    reduction = "sum"
    metadata: list[OpMetadata] = []
    while not cursor.at("}"):
        cursor.expect(",")
        key = cursor.key()
        if key == "metadata":
            metadata += take_metadata_list(cursor)
            continue
        if key not in ("replicated", "unreduced", "manual"):
            raise cursor.fault(
                f"a named sharding has no `{key}`",
                expected="replicated=, unreduced=, manual= or metadata=",
            )
        if key == "unreduced" and not cursor.at("{"):
            reduction = _take_reduction(cursor)
        lists[key] = lists.get(key, ()) + take_axes(cursor, mesh)
    return NamedSharding(
        mesh,
        dimensions,
        lists.get("replicated", ()),
        lists.get("unreduced", ()),
        lists.get("manual", ()),
        reduction,
        tuple(metadata),
    )


def _take_dimension(cursor: Cursor, mesh: Mesh) -> DimensionSharding:
    cursor.expect("{")
    axes: list[AxisRef] = []
    is_closed = True
    while not cursor.at("}"):
        if axes or not is_closed:
            cursor.expect(",")
        if not is_closed:
            raise cursor.fault("`?` is not the last entry of its dimension")
        if cursor.take("?"):
            is_closed = False
        else:
            axes.append(take_axis(cursor, mesh))
    cursor.expect("}")
    return DimensionSharding(tuple(axes), is_closed)
