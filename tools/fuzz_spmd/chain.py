"""A random module of a few ops, whose shardings are said in Shardy's words."""

import random
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tests.support.random_shardings import MESHES

SIZES = (2, 3, 5, 6, 8, 12)
_MOST_ELEMENTS = 4096
_APPLIED = "{0} {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] {0}(a, b) }}\n"

Op = Callable[["Chain", str, tuple[int, ...]], None]
"""What appends an op that reads a value, given its name and sizes."""
Value = tuple[str, tuple[int, ...]]
"""A name and its sizes."""


CALLED = """second {
  a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] copy(b)
}
first_less {
  a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] parameter(2)  d = f32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}
first_greatest {
  a = f32[] parameter(0)  i = s32[] parameter(1)  b = f32[] parameter(2)  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT  tie = pred[] and(eq, lt)  mine = pred[] or(gt, tie)
  x = f32[] select(mine, a, b)  k = s32[] select(mine, i, j)
  ROOT r = (f32[], s32[]) tuple(x, k)
}
"""


class Chain:
    """A module of a few ops in the making, whose shardings are said in Shardy's words."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.mesh = self.draws.choice(MESHES)
        self.lines: list[str] = ["zero = f32[] constant(0)", "half = f32[] constant(0.5)"]
        self.values: list[Value] = []
        self.parameter_count = 0
        self.device_count = prod(self.mesh)
        self.devices = list(range(self.device_count))
        """In the mesh's order."""
        if self.draws.random() < 0.3:
            self.draws.shuffle(self.devices)
        self.called: list[str] = []
        """Computations of its own."""

    def text(self, ops: Sequence[Op]) -> str:
        """Return a random module."""
        draw = self.draws
        for _ in range(draw.randint(1, 3)):
            rank = draw.choice((1, 2, 2, 3, 3, 4))
            self.parameter(tuple(draw.choice(SIZES) for _ in range(rank)))
        while not self.values:
            self.parameter((6, 8))
        for _ in range(draw.randint(3, 9)):
            draw.choice(ops)(self, *draw.choice(self.values))
        last = self.values[-3:]
        shapes = ", ".join(map(shape_of, (sizes for _, sizes in last)))
        root = f"ROOT root = ({shapes}) tuple({', '.join(name for name, _ in last)})"
        axes = ", ".join(f'"{"xyz"[i]}"={n}' for i, n in enumerate(self.mesh))
        is_shuffled = self.devices != sorted(self.devices)
        axes += f"], device_ids={self.devices}" if is_shuffled else "]"
        header = f"frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<[{axes}>}}}}"
        applied = "".join([*map(_APPLIED.format, ("add", "maximum")), CALLED, *self.called])
        body = "\n".join(f"  {line}" for line in (*self.lines, root))
        return f"HloModule m, {header}\n{applied}ENTRY e {{\n{body}\n}}\n"

    def parameter(self, sizes: tuple[int, ...], goes_on: bool = True) -> str:
        """Append a parameter; return its name, empty where it would be too large."""
        if prod(sizes) > _MOST_ELEMENTS:
            return ""
        number = self.parameter_count
        self.parameter_count += 1
        name = f"p{number}"
        stated = self.stated(len(sizes))
        self.lines.append(f"{name} = {shape_of(sizes)} parameter({number}), {stated}")
        if goes_on:
            self.values.append((name, sizes))
        return name

    def add(self, op: str, sizes: tuple[int, ...]) -> None:
        """Append an op whose result goes on, unless it is too large."""
        if prod(sizes) <= _MOST_ELEMENTS and 0 < len(sizes) <= 4:
            name = f"v{len(self.values)}"
            self.lines.append(f"{name} = {shape_of(sizes)} {op}")
            self.values.append((name, sizes))

    def groups(self, axis: int) -> str:
        """Return the devices that differ along an axis alone, as groups."""
        rows = np.moveaxis(np.array(self.devices).reshape(self.mesh), axis, -1)
        return listed([listed(row) for row in rows.reshape(-1, self.mesh[axis]).tolist()])

    def turned(self, axis: int) -> str:
        """Return pairs of each device and the next along an axis."""
        grid = np.array(self.devices).reshape(self.mesh)
        pairs = zip(grid.reshape(-1), np.roll(grid, -1, axis).reshape(-1), strict=True)
        return listed([listed(pair) for pair in pairs])

    def stated(self, rank: int) -> str:
        """Return a random sharding as an attribute."""
        draw = self.draws
        owned: list[list[str]] = [[] for _ in range(rank)]
        barred: list[str] = []
        axes = list(enumerate(self.mesh))
        draw.shuffle(axes)
        for number, size in axes:
            name, halves = f'"{"xyz"[number]}"', size % 2 == 0 and size > 2
            refs = [name]
            if halves and draw.random() < 0.4:
                refs = [f"{name}:(1)2", f"{name}:(2){size // 2}"]
                if draw.random() < 0.5:
                    refs.pop()
            for ref in refs:
                d = draw.randint(0, rank + 1)
                if d < rank and not (owned[d] and owned[d][-1][:3] == ref[:3]):
                    owned[d].append(ref)
                elif d == rank:
                    barred.append(ref)
        each = []
        for own in owned:
            if draw.random() < 0.4:
                own.append("?")
            later = "p1" if own and own != ["?"] and draw.random() < 0.15 else ""
            each.append(f"{{{', '.join(own)}}}{later}")
        more = f", replicated={{{', '.join(sorted(barred)[:1])}}}" if barred else ""
        text = f"#sdy.sharding<@mesh, [{', '.join(each)}]{more}>".replace('"', '\\"')
        return f'frontend_attributes={{xla.sdy.sharding="{text}"}}'


def shape_of(sizes: Sequence[int]) -> str:
    """Return the type of an array."""
    return f"f32[{','.join(map(str, sizes))}]"


def listed(numbers: Sequence[object]) -> str:
    """Return words in braces."""
    return f"{{{','.join(map(str, numbers))}}}"


def without(sizes: tuple[int, ...], d: int) -> tuple[int, ...]:
    """Return sizes without a dimension."""
    return sizes[:d] + sizes[d + 1 :]


def replaced(sizes: tuple[int, ...], d: int, *own: int) -> tuple[int, ...]:
    """Return sizes with others for a dimension."""
    return sizes[:d] + own + sizes[d + 1 :]
