"""Charges of control flow: decisions, loop iterations, calls."""

from hloipu_runtime.costs.exchanging import word_to_all_tiles
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.machine.charges import charge_of, slowest
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine

WORD_BYTES = 4


def decision(machine: Machine, at_ipu: int, ipus: frozenset[int], system_ipus: int) -> Spent:
    """Return what it costs that all tiles learn a predicate or an index, and branch.

    IPUs are given by their places in the system.

    No source tells how Poplar does it. Taken is a barrier, one word from the tile that holds it to
    all others, and each supervisor's load and branch.
    """
    flows = decision_flows(at_ipu, ipus)
    return Spent(
        compute=charge_of(
            machine,
            (machine.tile.load_use_cycles, "tile.load_use_cycles"),
            (machine.tile.supervisor_branch_cycles, "tile.supervisor_branch_cycles"),
        ),
        exchange=slowest((word_to_all_tiles(machine), link_transfer(machine, flows, system_ipus))),
        sync=sync(machine, 1 + len(flows)),
    )


def decision_flows(at_ipu: int, ipus: frozenset[int]) -> list[Flow]:
    """Return what the IPU that holds a predicate sends to the others, by places in the system."""
    return [Flow(at_ipu, ipu, WORD_BYTES) for ipu in sorted(ipus - {at_ipu})]


def branches(machine: Machine, count: int) -> Spent:
    """Return the cost of supervisors' jumps: one an iteration of a counted loop, two a call."""
    cycles = machine.tile.supervisor_branch_cycles
    return Spent(compute=charge_of(machine, (count * cycles, "tile.supervisor_branch_cycles")))
