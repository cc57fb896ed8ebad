"""Budgets for cutting stages: cycles of ops, links and memory of the machine."""

from collections.abc import Sequence
from typing import NamedTuple

from hloipu_compiler.cost_survey.op_prices import OpPrice
from hloipu_compiler.partition.stages.cut_tables import Budget
from hloipu_compiler.partition.stages.cutting import Costing
from hloipu_compiler.plan.pipelining import AUTO, ON, PipelineRequest
from hloipu_runtime.machine.links import Segment, segment_rate
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes

CODE_SHARE = 0.25
"""Most of an IPU's memory that code is taken to need, by the number of ops. Assumed."""
_LEAST_KEPT = 0.1
"""Of an IPU's memory, for what is kept from slot to slot, however much an op needs."""


class Needs(NamedTuple):
    """Bytes that the ops of a step need besides what is kept."""

    code_bytes: int = 0
    """On a tile, of all of them."""
    work_bytes: int = 0
    """On an IPU, of that which needs most."""


def needs_of(prices: Sequence[OpPrice]) -> Needs:
    """Return what ops need that take what `prices` say."""
    return Needs(
        sum(price.code_bytes for price in prices),
        max((price.work_bytes for price in prices), default=0),
    )


NOTHING_KNOWN = Needs()


def budget_of(machine: Machine, request: PipelineRequest, needs: Needs = NOTHING_KNOWN) -> Budget:
    """Return what a machine gives each stage of a step.

    What one op needs at most, and the code of an even part of the ops, leave no room for what is
    kept. During an update there is code alone beside what is there.
    """
    rate = segment_rate(machine, Segment("up", 0))
    tiles = machine.chip.tiles_per_ipu
    memory_bytes = tiles * available_bytes(machine)
    code = tiles * needs.code_bytes / (request.stages or 1)
    room = memory_bytes - min(code, CODE_SHARE * memory_bytes)
    kept = max(room - needs.work_bytes, _LEAST_KEPT * memory_bytes)
    several = request.micro_batches > 1 or (request.stages or 1) > 1
    is_beside = request.offload == ON or (request.offload == AUTO and several)
    return Budget(
        machine.chip.clock_hz / rate,
        kept,
        0.0 if request.offload_accumulators else 1.0,
        0.0 if is_beside and machine.remote.remote_bytes else 1.0,
        0.0 if request.offload_weights else 1.0,
        0.0 if request.offload_activations else 1.0,
        kept / room,
    )


def costing_of(prices: Sequence[OpPrice], machine: Machine, request: PipelineRequest) -> Costing:
    """Return what the cutting of stages has to know of ops that take what `prices` say."""
    cycles = [price.cycles for price in prices]
    return Costing(cycles, budget_of(machine, request, needs_of(prices)))
