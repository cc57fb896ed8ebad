"""State in remote buffers: what only the update reads lies beside the IPU while micro-batches run.

As Graphcore's backend does it by default where gradients are accumulated (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/passes/variables_offload_and_partition.cc), arrays of at
least `LEAST_BYTES` alone.
"""

from collections.abc import Iterable
from math import prod

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.plan.pipelining import OFF, ON, PipelineRequest, Pipelining
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles, whole
from hloipu_runtime.program.program import Role

LEAST_BYTES = 128
"""Graphcore's `minimum_remote_tensor_size`."""

Kind = tuple[str, Sizes]


def offloads(request: PipelineRequest, pipelining: Pipelining, machine: Machine) -> bool:
    """Return whether state is to lie in remote buffers: asked for, or of use and there.

    Raises UsageError E0511 where a machine without them is asked for it.
    """
    if request.offload == ON and not machine.remote.remote_bytes:
        raise UsageError(
            "E0511",
            f"{machine.name} has no remote buffers to keep state in",
            hint="leave --offload out, or take a machine that has them, such as gc200",
        )
    if request.offload in (ON, OFF):
        return request.offload == ON
    several = pipelining.micro_batches > 1 or len(pipelining.positions) > 1
    return several and machine.remote.remote_bytes > 0


def only_updated(
    entry: Computation, update: str, kinds: dict[int, Kind], parameters: Iterable[int]
) -> frozenset[int]:
    """Return the parameters of these that nothing but the update reads, and that are large enough.

    `kinds`: of the entry's parameters, by number.
    """
    found = set()
    wanted = set(parameters)
    for position, x in enumerate(entry.instructions):
        number = x.parameter_number
        if number not in wanted or bytes_of(kinds[number]) < LEAST_BYTES:
            continue
        users = {entry.instructions[user].name for user in entry.users[position]}
        if users == {update}:
            found.add(number)
    return frozenset(found)


def bytes_of(kind: Kind) -> int:
    """Return the bytes of an array."""
    return -(-prod(kind[1]) * ELEMENT_TYPES[kind[0]].bits // 8)


def remote_variable(builder: Builder, kind: Kind) -> int:
    """Return a variable in the memory beside the IPU at hand."""
    nowhere = Mapping(Tiles((), (), 0), tuple(whole(size) for size in kind[1]))
    return builder.variable(*kind, nowhere, Role.REMOTE)


def fetched(builder: Builder, there: Held) -> Held:
    """Write the copy of remote state to tiles of its IPU; return it there."""
    builder.ipu = builder.variables[there.variable].ipu
    kind = (there.element_type, there.shape)
    variable = builder.variable(*kind, builder.home(*kind))
    builder.emit(RemoteCopy(there.variable, variable, there.value))
    return Held(there.value, variable, *kind)


def stored(builder: Builder, leaf: Held, home: Held) -> int:
    """Write the copy of new state to where it lies while micro-batches run; return its value."""
    builder.ipu = builder.variables[home.variable].ipu
    here = builder.brought_here(leaf)
    if not isinstance(here, Held):
        raise TypeError(f"{home} is not on tiles")
    builder.emit(RemoteCopy(here.variable, home.variable, here.value))
    return here.value
