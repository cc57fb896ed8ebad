"""What the cutting of stages asks of a machine: cycles of ops, links and memory."""

from collections.abc import Callable

from hloipu_compiler.codegen.tuning import DEFAULT_TUNING, Tuning
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import AUTO, ON, PipelineRequest
from hloipu_compiler.pricing.op_prices import op_prices
from hloipu_compiler.staging.balancing import Budget
from hloipu_compiler.staging.cutting import Costing, work
from hloipu_runtime.machine.links import Segment, segment_rate
from hloipu_runtime.machine.model import Machine

KEPT_SHARE = 0.35
"""Of an IPU's memory, for what is kept from slot to slot; the rest is for code, exchanges and what
one stage makes. Assumed."""


def budget_of(machine: Machine, request: PipelineRequest) -> Budget:
    """Return what a machine gives each stage."""
    rate = segment_rate(machine, Segment("up", 0))
    room = machine.chip.tiles_per_ipu * machine.usable_bytes
    accumulates = request.micro_batches > 1
    cut = accumulates or (request.stages or 1) > 1
    is_beside = request.offload == ON or (request.offload == AUTO and cut)
    return Budget(
        machine.chip.clock_hz / rate,
        KEPT_SHARE * room,
        1.0 if accumulates else 0.0,
        0.0 if is_beside and machine.remote.remote_bytes else 1.0,
    )


def costing_on(
    machine: Machine, request: PipelineRequest, tuning: Tuning = DEFAULT_TUNING
) -> Callable[[Module], Costing]:
    """Return what tells the costs of a flat module's ops on a machine."""
    return lambda module: Costing(
        op_prices(module, machine, tuning, work), budget_of(machine, request)
    )
