"""Shardy's meshes and shardings, as HLO carries them in frontend attributes.

    {mesh = #sdy.mesh<["data"=2, "model"=4]>}
    #sdy.sharding_per_value<[<@mesh, [{"data", ?}, {"model":(1)2}p1], replicated={"x"}>]>

Source: openxla/shardy `shardy/dialect/sdy/ir/attrs.td`, `parsers.cc`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeVar

from hloipu_compiler.hlo.attributes.mesh import (
    MOST_DEVICES,
    PLAIN_ORDER,
    AxisRef,
    DeviceOrder,
    Mesh,
)
from hloipu_compiler.hlo.attributes.named_sharding import DimensionSharding, NamedSharding

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|#?[A-Za-z_][\w.]*|\d+|[^\s\w])')

_T = TypeVar("_T")


class SdyFault(ValueError):
    """A text that is no mesh or sharding of Shardy's."""


def read_meshes(text: str) -> dict[str, Mesh]:
    """Read the value of `xla.sdy.meshes`: meshes by name."""
    words = _Words(text)
    meshes: dict[str, Mesh] = {}
    words.expect("{")
    while not words.take("}"):
        name = words.name()
        words.expect("=")
        words.expect("#sdy.mesh")
        meshes[name] = _mesh(words)
        words.take(",")
    return meshes


def read_shardings(text: str, meshes: Mapping[str, Mesh]) -> tuple[NamedSharding, ...]:
    """Read `#sdy.sharding_per_value<[…]>`, or one `#sdy.sharding<…>`."""
    words = _Words(text)
    if words.take("#sdy.sharding"):
        return (_sharding(words, meshes),)
    words.expect("#sdy.sharding_per_value", "<", "[")
    return words.items("]", lambda: _sharding(words, meshes))


def read_manual_axes(text: str) -> tuple[str, ...]:
    """Read `#sdy<manual_axes{"data", "model"}>`: names of axes."""
    words = _Words(text)
    words.expect("#sdy", "<", "manual_axes", "{")
    return words.items("}", words.name)


class _Words:
    """The tokens of a text, read from the left."""

    def __init__(self, text: str) -> None:
        self._tokens: Sequence[str] = _TOKEN.findall(text)
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def next(self) -> str:
        token = self.peek()
        if not token:
            raise SdyFault("it ends too early")
        self._at += 1
        return token

    def take(self, token: str) -> bool:
        is_next = self.peek() == token
        self._at += is_next
        return is_next

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            word = self.next()
            if word != token:
                raise SdyFault(f"{word!r} stands where {token!r} was expected")

    def items(self, end: str, read: Callable[[], _T]) -> tuple[_T, ...]:
        """Read items up to `end`, commas between them or not."""
        items: list[_T] = []
        while not self.take(end):
            items.append(read())
            self.take(",")
        return tuple(items)

    def name(self) -> str:
        token = self.next()
        return token[1:-1] if token.startswith('"') else token

    def integer(self) -> int:
        token = self.next()
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise SdyFault(f"{token!r} stands where a number was expected")
        return int(token)


def _mesh(words: _Words) -> Mesh:
    """Read `<["a"=2, "b"=4], device_ids=[…]>`."""
    words.expect("<", "[")
    names, sizes = [], []
    while not words.take("]"):
        names.append(words.name())
        words.expect("=")
        sizes.append(words.integer())
        words.take(",")
    if any(size < 1 for size in sizes) or prod(sizes) > MOST_DEVICES:
        raise SdyFault(f"a mesh of the sizes {sizes} cannot be")
    order = PLAIN_ORDER
    if words.take(","):
        words.expect("device_ids", "=", "[")
        order = DeviceOrder(listed=words.items("]", words.integer))
    words.expect(">")
    return Mesh(tuple(names), tuple(sizes), order, is_maximal=not names and bool(order.listed))


def _sharding(words: _Words, meshes: Mapping[str, Mesh]) -> NamedSharding:
    words.expect("<")
    if words.take("@"):
        name = words.name()
        if name not in meshes:
            raise SdyFault(f"there is no mesh {name!r}")
        mesh = meshes[name]
    else:
        words.expect("mesh")
        mesh = _mesh(words)
    words.expect(",", "[")
    dimensions = words.items("]", lambda: _dimension(words, mesh))
    lists: dict[str, tuple[AxisRef, ...]] = {}
    reduction = "sum"
    while not words.take(">"):
        words.expect(",")
        key = words.next()
        if key not in ("replicated", "unreduced"):
            raise SdyFault(f"{key!r} stands where replicated or unreduced was expected")
        words.expect("=")
        if key == "unreduced" and words.peek() in ("max", "min", "sum"):
            reduction = words.next()
        lists[key] = _axes(words, mesh)
    return NamedSharding(
        mesh,
        dimensions,
        lists.get("replicated", ()),
        lists.get("unreduced", ()),
        reduction=reduction,
    )


def _axes(words: _Words, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Read `{"a", "b":(1)2}`; there may be none."""
    words.expect("{")
    return words.items("}", lambda: _axis(words, mesh))


def _dimension(words: _Words, mesh: Mesh) -> DimensionSharding:
    """Read `{"a", "b":(1)2, ?}`, perhaps with a priority `p1` after it."""
    words.expect("{")
    axes: list[AxisRef] = []
    is_closed = True
    while not words.take("}"):
        if words.take("?"):
            is_closed = False
        else:
            axes.append(_axis(words, mesh))
        words.take(",")
    priority = 0
    if re.fullmatch(r"p\d{1,9}", words.peek()):
        priority = int(words.next()[1:])
    return DimensionSharding(tuple(axes), is_closed, priority)


def _axis(words: _Words, mesh: Mesh) -> AxisRef:
    name = words.name()
    axis = mesh.axis_position.get(name)
    if axis is None:
        raise SdyFault(f"the mesh has no axis {name!r}")
    if not words.take(":"):
        return AxisRef(axis)
    words.expect("(")
    pre_size = words.integer()
    words.expect(")")
    size = words.integer()
    if pre_size < 1 or size < 2 or mesh.axis_sizes[axis] % (pre_size * size):
        raise SdyFault(f"an axis of {mesh.axis_sizes[axis]} has no part ({pre_size}){size}")
    return AxisRef(axis, pre_size, size)
