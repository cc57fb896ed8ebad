"""What products may take, so that a program that did not fit does: by its own memory plan.

Plans of products rest on guesses at code and on values as if they lay evenly. A program that was
made tells what is live while each product runs, code, copies and messages with it: a product at a
moment that lacks bytes is planned again with so many less. Buffers on the way to tiles of a dot,
which no vertex touches, are in no plan; convolutions' plans count messages.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.memory.messages import points_of
from hloipu_runtime.memory.plan import IpuMemory, MemoryPlan, kept_bytes
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet
from hloipu_runtime.program.uses import steps_within

Rooms = Mapping[tuple[int, str], int]
"""IPU and instruction -> bytes that a product may take on a tile."""

_AROUND = 2
"""Points before and after a product at which its operands come and its pieces are added."""

_PRODUCT = "product"
"""The kind of the code of products, but for convolutions with windows."""


def product_rooms(memory: MemoryPlan, known: Rooms) -> Rooms:
    """Return what products at moments that lack bytes may take, and what is known of others.

    Nothing where no product is at such a moment.
    """
    rooms = dict(known)
    names = _products(memory.program)
    places = points_of(memory.liveness.region, {key: step for key, (step, _) in names.items()})
    of_vertices = _of_vertices(memory.program)
    variables_of: dict[tuple[int, str], list[int]] = {}
    for number, variable in enumerate(memory.program.variables):
        variables_of.setdefault((variable.ipu, variable.origin), []).append(number)
    for ipu in memory.ipus:
        lacking = (ipu.needed_bytes > memory.available_bytes).nonzero()[0]
        if not len(lacking):
            continue
        over = _curves(memory, ipu)[:, lacking] - memory.available_bytes
        worst: dict[str, tuple[int, int, int]] = {}
        convolutions: set[str] = set()
        for key, (step, products) in names.items():
            convolutions |= {x.name for x in step.groups if x.codelet.name == Convolution.name}
            for first, last in places[key]:
                first = max(0, first - _AROUND)
                here = over[first : last + _AROUND + 1]
                point, column = divmod(int(here.argmax()), len(lacking))
                most = (int(here[point, column]), first + point, int(lacking[column]))
                for name in products.get(ipu.ipu, ()):
                    worst[name] = max(worst.get(name, most), most)
        for name, (size, point, found) in worst.items():
            if size > 0:
                variables = variables_of.get((ipu.ipu, name), [])
                if name in convolutions:
                    taken = _live_bytes(memory, ipu, variables, point, found)
                    taken += _messages(ipu, variables, point, found)
                else:
                    variables = [number for number in variables if number in of_vertices]
                    taken = _live_bytes(memory, ipu, variables, point, found)
                # A product may take more than planned.
                allowed = min(taken, known.get((ipu.ipu, name), taken))
                rooms[ipu.ipu, name] = max(0, allowed - size)
    return rooms


def _products(program: Program) -> dict[int, tuple[ComputeSet, dict[int, list[str]]]]:
    """Return by `id` the steps with products, and by IPU the instructions these come from."""
    found: dict[int, tuple[ComputeSet, dict[int, list[str]]]] = {}
    for step in _compute_sets(program):
        for group in step.groups:
            codelet = group.codelet
            if codelet.code_kind == _PRODUCT or codelet.name == Convolution.name:
                ipu = program.variables[group.outputs[0].variable].ipu
                _, products = found.setdefault(id(step), (step, {}))
                products.setdefault(ipu, []).append(group.name)
    return found


def _of_vertices(program: Program) -> set[int]:
    """Return the variables that vertices read or write."""
    return set().union(*(step.touches for step in _compute_sets(program)))


def _compute_sets(program: Program) -> Iterator[ComputeSet]:
    for body in (program.body, *program.functions.values()):
        yield from (x for x in steps_within(body, program) if isinstance(x, ComputeSet))


def _curves(memory: MemoryPlan, ipu: IpuMemory) -> NDArray[np.int64]:
    """Return the bytes that are taken at each point on each class of an IPU's tiles."""
    change = np.zeros((memory.liveness.points + 1, ipu.classes.count), np.int64)
    for size, members, first, last in _live(memory, ipu):
        change[first, members] += size
        change[last + 1, members] -= size
    np.cumsum(change, axis=0, out=change)
    return change[:-1] + ipu.floor + ipu.gap_bytes


def _live(
    memory: MemoryPlan, ipu: IpuMemory
) -> Iterator[tuple[int, slice | NDArray[np.int64], int, int]]:
    """Yield bytes, classes of tiles, and the first and last point at which they are taken."""
    for number, variable in enumerate(memory.program.variables):
        if variable.ipu == ipu.ipu and memory.liveness.ranges[number]:
            members = ipu.classes.members[variable.mapping.tiles]
            for first, last in memory.liveness.ranges[number]:
                yield kept_bytes(variable, memory.machine), members, first, last
    for message in ipu.messages:
        for first, last in message.ranges:
            yield message.size_bytes, ipu.classes.members[message.tiles], first, last


def _live_bytes(
    memory: MemoryPlan, ipu: IpuMemory, variables: list[int], point: int, tile_class: int
) -> int:
    """Return the bytes of some variables on a class of tiles at a point."""
    here = ipu.classes.grids_of(tile_class)
    return sum(
        kept_bytes(memory.program.variables[number], memory.machine)
        for number in variables
        if memory.program.variables[number].mapping.tiles in here
        and any(first <= point <= last for first, last in memory.liveness.ranges[number])
    )


def _messages(ipu: IpuMemory, variables: list[int], point: int, tile_class: int) -> int:
    """Return the bytes of messages to some variables on a class of tiles at a point."""
    here = ipu.classes.grids_of(tile_class)
    return sum(
        message.size_bytes
        for message in ipu.messages
        if message.destination in variables
        and message.tiles in here
        and any(first <= point <= last for first, last in message.ranges)
    )
