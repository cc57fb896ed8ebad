"""Rules of arrays in blocks: the mesh has every partition, and ports are blocks of their arrays."""

from collections.abc import Iterator
from math import prod

from hloipu_runtime.program.blocks import Blocks, blocks_by_number
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of
from hloipu_runtime.program.stacks import KINDS, PARAMETER, RESULT, Partitioning


def block_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield places and faults of a program's partitioning."""
    if program.partitioning is None:
        return
    found = list(_form_faults(program.partitioning, program.partitions))
    yield from found
    if program.stacks:
        yield "the blocks", "arrays are in pieces as well"
    if not found:
        yield from _port_faults(program, program.partitioning)


def _form_faults(partitioning: Partitioning, partitions: int) -> Iterator[tuple[str, str]]:
    mesh, order = partitioning.mesh, partitioning.order
    if min(mesh, default=1) < 1 or prod(mesh) != partitions:
        yield "the mesh", f"{list(mesh)[:20]} is none of {partitions} partitions"
    if order and sorted(order) != list(range(partitions)):
        yield "the mesh", "its order has not every partition once"
    met: set[tuple[str, int]] = set()
    for x in partitioning.arrays:
        place = f"the blocks of {x.kind[:40]} {x.number}"
        used = [axis for axes in x.axes for axis in axes]
        if x.kind not in KINDS or x.number < 0 or (x.kind, x.number) in met:
            yield place, "there is no such array, or it is there twice"
        if len(x.axes) != len(x.shape) or min(x.shape, default=0) < 0:
            yield place, "they have another number of dimensions"
        if len(set(used)) != len(used) or not all(0 <= axis < len(mesh) for axis in used):
            yield place, "the mesh has not each of their axes once"
        met.add((x.kind, x.number))


def _port_faults(program: Program, partitioning: Partitioning) -> Iterator[tuple[str, str]]:
    """Yield ports of another shape than the blocks of their arrays, and blocks of no port."""
    given = blocks_by_number(partitioning, PARAMETER)
    made = blocks_by_number(partitioning, RESULT)
    shapes: list[tuple[dict[int, Blocks], int, Sizes]] = [
        (given, number_of(port), port.shape) for port in program.parameters
    ]
    shapes += [(made, number_of(port), port.shape) for port in program.results]
    for state in program.state:
        shape = program.variables[state.variable].shape
        shapes += [(given, state.parameter, shape), (made, state.result, shape)]
    for queue in program.queues:
        pairs = zip(queue.places, queue.streams, strict=False)
        shapes += [(given if queue.to_device else made, n, port.shape) for n, port in pairs]
    for blocks, number, shape in shapes:
        if number in blocks and blocks[number].block_shape != shape:
            kind = PARAMETER if blocks is given else RESULT
            yield f"the blocks of {kind} {number}", f"they are no {list(shape)}"
