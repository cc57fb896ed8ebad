"""A device shared by sessions: one executable at a time, and swaps that cost time.

As in Graphcore's stack (graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/
poplar_executor.cc), running another executable than the last one brings the last one's state to the
host, loads the new one, and brings its state back. What such a load costs no source tells;
*assumed*: two transfers of all bytes at the rates of the host's link, and a round trip each.
"""

import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Program

_LOADED = ("vertex code", "control code", "exchange code", "vertex state", "constants")
"""Categories of memory that an executable brings along."""
_STATE = ("state",)
_SWAPS_TO_WARN = 2
"""Swaps that bring back what was there just before, one after the other: executables alternate."""


class EngineSwapWarning(UserWarning):
    """Sessions of several executables alternate on one device, and each swap costs time."""


class Footprint(NamedTuple):
    """Bytes of one executable on a device, of all tiles and of the fullest."""

    loaded_bytes: int
    loaded_tile_bytes: int
    state_bytes: int
    state_tile_bytes: int


def footprint(memory: Mapping[str, Any]) -> Footprint:
    """Return what a memory report's record says of an executable; nothing of an empty record."""
    if not memory:
        return Footprint(0, 0, 0, 0)
    everywhere, fullest = memory["parts"], memory["peak"]["parts"]
    return Footprint(
        sum(everywhere[name] for name in _LOADED),
        sum(fullest[name] for name in _LOADED),
        sum(everywhere[name] for name in _STATE),
        sum(fullest[name] for name in _STATE),
    )


def constants_cycles(program: Program, machine: Machine) -> int:
    """Return the cycles of bringing a program's loaded parameters to the device, all at once."""
    lying = [program.variables[n] for n, (v, _) in program.constants.items() if v in program.loaded]
    size_bytes = sum(v.mapping.tiles.count * v.bytes_per_tile for v in lying)
    return host_transfer(
        machine,
        [size_bytes],
        to_device=True,
        busiest_tile_bytes=sum(v.bytes_per_tile for v in lying),
    ).cycles


class Resident:
    """An executable that may lie on a device, with the state of one session."""

    def __init__(self, name: str, machine: Machine, memory: Mapping[str, Any]) -> None:
        self.name = name
        self.machine = machine
        self.footprint = footprint(memory)

    @property
    def save_cycles(self) -> int:
        """Cycles of bringing the state to the host."""
        of = self.footprint
        return host_transfer(
            self.machine, [of.state_bytes], to_device=False, busiest_tile_bytes=of.state_tile_bytes
        ).cycles

    @property
    def load_cycles(self) -> int:
        """Cycles of bringing code, constants and state to the device."""
        of = self.footprint
        return host_transfer(
            self.machine,
            [of.loaded_bytes + of.state_bytes],
            to_device=True,
            busiest_tile_bytes=of.loaded_tile_bytes + of.state_tile_bytes,
        ).cycles


class Device:
    """One simulated device for several sessions: `program.session(device=device)`.

    Sessions take turns; which of them runs has to lie on the device. `swaps` counts how often
    another one had to be loaded, `swap_cycles` what that took; the first load is free, as that of a
    session of its own is.
    """

    @checked
    def __init__(self) -> None:
        self.swaps: int = 0
        self.swap_cycles: int = 0
        self._lock = threading.Lock()
        self._here: weakref.ref[Resident] | None = None
        self._before: weakref.ref[Resident] | None = None
        self._alternations = 0
        self._has_warned = False
        self._machine: Machine | None = None

    @property
    def resident(self) -> str:
        """Name of the program that lies on the device; empty: none does."""
        here = None if self._here is None else self._here()
        return here.name if here else ""

    @checked
    def admit(self, resident: Resident) -> None:
        """Note a session that will use the device.

        Raises UsageError E2043 where it is made for another machine than those before.
        """
        with self._lock:
            if self._machine is None:
                self._machine = resident.machine
            if resident.machine.name != self._machine.name:
                raise UsageError(
                    "E2043",
                    f"{resident.name!r} is for {resident.machine.name}, the device is "
                    f"{self._machine.name}",
                    hint="give each machine a device of its own",
                )

    @checked
    def bring(self, resident: Resident) -> int:
        """Have an executable on the device; return the cycles that its swap takes, 0 for none.

        Warns once (EngineSwapWarning) where it was there before what is there now.
        """
        with self._lock:
            here = None if self._here is None else self._here()
            if here is resident:
                return 0
            before = None if self._before is None else self._before()
            self._before, self._here = self._here, weakref.ref(resident)
            if here is None:
                return 0
            cycles = here.save_cycles + resident.load_cycles
            self.swaps += 1
            self.swap_cycles += cycles
            self._alternations = self._alternations + 1 if before is resident else 0
            warns = self._alternations >= _SWAPS_TO_WARN and not self._has_warned
            self._has_warned |= warns
        if warns:
            milliseconds = 1e3 * cycles / resident.machine.chip.clock_hz
            warnings.warn(
                f"{here.name!r} and {resident.name!r} alternate on one device: each swap takes "
                f"{cycles:,} cycles ({milliseconds:.3g} ms), as one executable at a time lies "
                "there; do more steps between swaps, or make one program of both",
                EngineSwapWarning,
                stacklevel=4,
            )
        return cycles
