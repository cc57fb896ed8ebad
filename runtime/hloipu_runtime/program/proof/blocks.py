"""Rules of arrays in blocks of a mesh, and of parallel branches: each on IPUs of its own."""

from collections.abc import Collection, Iterator
from math import prod

from hloipu_runtime.program.blocks import blocks_by_number
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of
from hloipu_runtime.program.stacks import KINDS, PARAMETER, RESULT, STREAM, Numbering, Partitioning
from hloipu_runtime.program.state_parts import user_shape
from hloipu_runtime.program.steps import Parallel, Sync
from hloipu_runtime.program.uses import steps_within, used


def block_faults(program: Program) -> Iterator[tuple[str, str]]:
    """Yield places and faults of a program's partitioning."""
    if program.partitioning is None:
        return
    form_faults = list(_form_faults(program.partitioning, program.partitions))
    yield from form_faults
    if not form_faults:
        yield from _port_faults(program, program.partitioning)


def _form_faults(partitioning: Partitioning, partitions: int) -> Iterator[tuple[str, str]]:
    mesh, order = partitioning.mesh, partitioning.order
    if min(mesh, default=1) < 1 or prod(mesh) != partitions:
        yield "the mesh", f"{list(mesh)[:20]} is none of {partitions} partitions"
    if order and sorted(order) != list(range(partitions)):
        yield "the mesh", "its order has not every partition once"
    met: set[tuple[str, int]] = set()
    for array in partitioning.arrays:
        place = f"the blocks of {array.kind[:40]} {array.number}"
        used = [axis for axes in array.axes for axis in axes]
        if (
            array.kind not in (*KINDS, STREAM)
            or array.number < 0
            or (array.kind, array.number) in met
        ):
            yield place, "there is no such array, or it is there twice"
        if len(array.axes) != len(array.shape) or min(array.shape, default=0) < 0:
            yield place, "they have another number of dimensions"
        if len(set(used)) != len(used) or not all(0 <= axis < len(mesh) for axis in used):
            yield place, "the mesh has not each of their axes once"
        met.add((array.kind, array.number))


def _port_faults(program: Program, partitioning: Partitioning) -> Iterator[tuple[str, str]]:
    """Yield ports of another shape than the blocks of their arrays, and blocks of no port."""
    shapes = [(PARAMETER, number_of(port), port.shape) for port in program.parameters]
    shapes += [(RESULT, number_of(port), port.shape) for port in program.results]
    for state in program.state:
        shape = user_shape(program, state)
        shapes += [(PARAMETER, state.parameter, shape), (RESULT, state.result, shape)]
    for queue in program.queues:
        pairs = zip(queue.places, queue.streams, strict=False)
        kind = PARAMETER if queue.to_device else RESULT
        shapes += [(kind, number, port.shape) for number, port in pairs]
    numberings = {kind: Numbering(program.stacks, kind) for kind in KINDS}
    blocks = {kind: blocks_by_number(partitioning, kind) for kind in KINDS}
    streams = [port for queue in program.queues for port in queue.streams]
    for number, carried in blocks_by_number(partitioning, STREAM).items():
        if number >= len(streams) or carried.block_shape != streams[number].shape:
            yield f"the blocks of stream {number}", "no queue has a stream of their shape"
    for kind, number, shape in shapes:
        stack, users = numberings[kind].stack_of(number), numberings[kind].users(number)
        array_blocks = blocks[kind].get(users)
        if array_blocks is None:
            continue
        place = f"the blocks of {kind} {users}"
        if array_blocks.block_shape != (shape if stack is None else stack.shape):
            yield place, f"they are no {list(shape)}"
        elif stack is not None and array_blocks.counts[stack.axis] != 1:
            yield place, "they are in pieces along an axis that is divided"


def branch_faults(program: Program, step: Parallel) -> Iterator[str]:
    """Yield IPUs that several branches work on, and meetings with IPUs that a branch is not on."""
    used_ipus: set[int] = set()
    for number, branch in enumerate(step.branches):
        own_ipus = {program.variables[v].ipu for v in used(branch, program)}
        if own_ipus & used_ipus:
            shared = named_ipus(sorted(own_ipus & used_ipus))
            yield f"branch {number} and others before it share {shared}"
        used_ipus |= own_ipus
        inside = steps_within(branch, program)
        meeting = max((inner.ipus for inner in inside if isinstance(inner, Sync)), default=0)
        if meeting > max(1, len(own_ipus)):
            names = named_ipus(sorted(own_ipus))
            yield f"branch {number} has {meeting} IPUs meet, and is on {names}"


def named_ipus(ipus: Collection[int]) -> str:
    """Return IPUs in words."""
    return f"IPU{'s' if len(ipus) > 1 else ''} {', '.join(map(str, ipus))}"
