"""Offloaded values: kept in remote buffers, on tiles only while in use.

State that only the update reads, as Graphcore's backend has it by default where gradients are
accumulated, and on request what waits between positions, weights, and accumulators
(graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/passes,
variables_offload_and_partition.cc, gradient_accumulation_buffers_offload.cc and
pipeline_fifo_inserter.cc); arrays of at least `LEAST_BYTES` alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.lowering.core.builder import Array, Builder
from hloipu_compiler.lowering.core.values import TileTensor
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


@dataclass(frozen=True, slots=True)
class Offloads:
    """Which kinds of values lie in remote buffers."""

    state: bool = False
    """That only the update reads."""
    activations: bool = False
    """That wait between positions."""
    weights: bool = False
    accumulators: bool = False


NOTHING_OFFLOADED = Offloads()


def offloads(request: PipelineRequest, pipelining: Pipelining, machine: Machine) -> Offloads:
    """Return what is to lie in remote buffers: asked for, or of use and there.

    Raises UsageError E0511 where a machine without them is asked for it.
    """
    if (request.offload == ON or request.asks_remote) and not machine.remote.remote_bytes:
        raise UsageError(
            "E0511",
            f"{machine.name} has no remote buffers to keep {_asked_for(request)} in",
            hint="leave --offload and its kin out, or take a machine that has them, such as gc200",
        )
    several = pipelining.micro_batches > 1 or len(pipelining.positions) > 1
    state = several and machine.remote.remote_bytes > 0
    if request.offload in (ON, OFF):
        state = request.offload == ON
    return Offloads(
        state, request.offload_activations, request.offload_weights, request.offload_accumulators
    )


def _asked_for(request: PipelineRequest) -> str:
    kinds = {
        "state": request.offload == ON,
        "activations": request.offload_activations,
        "weights": request.offload_weights,
        "accumulators": request.offload_accumulators,
    }
    return ", ".join(kind for kind, is_asked in kinds.items() if is_asked)


def only_updated(
    entry: Computation, calls: Sequence[str], kinds: dict[int, Kind], parameters: Iterable[int]
) -> frozenset[int]:
    """Return the parameters of these that nothing but an update reads, and that are large enough.

    `calls`: the update, and what comes before micro-batches and may read them, too: weights that
    are cast there are read in another type by what follows. `kinds`: of the entry's parameters, by
    number.
    """
    return frozenset(
        number
        for number, users in _users_of_large(entry, kinds, parameters).items()
        if calls[0] in users and users <= frozenset(calls)
    )


def only_used_by(
    entry: Computation, calls: Iterable[str], kinds: dict[int, Kind], parameters: Iterable[int]
) -> frozenset[int]:
    """Return the parameters of these that nothing but some calls reads, large enough."""
    known = frozenset(calls)
    return frozenset(
        number
        for number, users in _users_of_large(entry, kinds, parameters).items()
        if users <= known
    )


def _users_of_large(
    entry: Computation, kinds: dict[int, Kind], parameters: Iterable[int]
) -> dict[int, set[str]]:
    """Return who reads each of these parameters that is large enough, by name."""
    wanted = set(parameters)
    return {
        op.parameter_number: {entry.instructions[user].name for user in entry.users[position]}
        for position, op in enumerate(entry.instructions)
        if op.parameter_number in wanted and is_large(kinds[op.parameter_number])
    }


def is_large(kind: Kind) -> bool:
    """Whether an array is worth a remote buffer."""
    return bytes_of(kind) >= LEAST_BYTES


def bytes_of(kind: Kind) -> int:
    """Return the bytes of an array."""
    return -(-prod(kind[1]) * ELEMENT_TYPES[kind[0]].bits // 8)


def remote_variable(builder: Builder, kind: Kind) -> int:
    """Return a variable in the memory beside the IPU at hand."""
    nowhere = Mapping(Tiles((), (), 0), tuple(whole(size) for size in kind[1]))
    return builder.variable(*kind, nowhere, Role.REMOTE)


def remote_constant(builder: Builder, value: int, kind: Kind, array: Array) -> TileTensor:
    """Return a variable beside the IPU at hand that the program is loaded with."""
    variable = remote_variable(builder, kind)
    builder.constants[variable] = (value, array)
    return TileTensor(value, variable, *kind)


def fetched(builder: Builder, there: TileTensor, depth: int = -1) -> TileTensor:
    """Write the copy of what is remote to tiles of its IPU, in a block; return it there."""
    builder.ipu = builder.variables[there.variable].ipu
    kind = (there.element_type, there.shape)
    variable = builder.variable(*kind, builder.default_mapping(*kind), depth=depth)
    builder.made_here(there.value, depth)
    builder.scopes[depth].steps.append(RemoteCopy(there.variable, variable, there.value))
    return TileTensor(there.value, variable, *kind)


def stored(builder: Builder, leaf: TileTensor, storage: TileTensor) -> int:
    """Write the copy of what a step made to where it lies meanwhile; return its value."""
    builder.ipu = builder.variables[storage.variable].ipu
    here = builder.brought_here(leaf)
    if not isinstance(here, TileTensor):
        raise TypeError(f"{storage} is not on tiles")
    builder.emit(RemoteCopy(here.variable, storage.variable, here.value))
    return here.value


def handed_over(builder: Builder, there: TileTensor, ipu: int) -> TileTensor:
    """Write the copy of what is remote at one IPU to remote memory at another; return it there."""
    here = fetched(builder, there)
    kind = (there.element_type, there.shape)
    mapping = builder.variables[here.variable].mapping
    builder.ipu = ipu
    landing = builder.variable(*kind, mapping)
    transfer, definition = builder.plain_copy(here, landing)
    builder.exchange([transfer], [definition])
    remote = TileTensor(there.value, remote_variable(builder, kind), *kind)
    builder.emit(RemoteCopy(landing, remote.variable, there.value))
    return remote
