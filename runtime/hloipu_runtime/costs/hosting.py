"""The charge of transfers between host and device: neighbours in the program go together."""

from math import prod

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import NOTHING, Charge
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Variable


class HostPhase:
    """Transfers in one direction with nothing but barriers between: one round trip for them all.

    Streams that are connected before the run pay none: the host is ahead of them.
    """

    def __init__(
        self,
        machine: Machine,
        ipus: int,
        *,
        to_device: bool,
        is_connected: bool = False,
        participants: int = 1,
    ) -> None:
        self.is_connected = is_connected
        self.participants = participants
        """Each on IPUs of its own, all of which transfer the same at once."""
        self.machine = machine
        self.to_device = to_device
        self.bytes_by_ipu = [0] * ipus
        self.busiest_tile_bytes = 0
        self.charged = NOTHING

    def add(self, variable: Variable) -> Charge:
        """Return what a variable's transfer adds to the phase; the first one pays the round trip.

        The tile with most to move is taken to be the same for all variables: an upper bound.
        """
        bits = prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits
        self.bytes_by_ipu[variable.ipu] += -(-bits // 8)
        self.busiest_tile_bytes += variable.bytes_per_tile
        total = host_transfer(
            self.machine,
            self.bytes_by_ipu * self.participants,
            to_device=self.to_device,
            busiest_tile_bytes=self.busiest_tile_bytes,
            is_connected=self.is_connected,
        )
        before, self.charged = self.charged, total
        return Charge(
            total.cycles - before.cycles, max(0, total.assumed_cycles - before.assumed_cycles)
        )
