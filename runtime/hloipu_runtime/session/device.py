"""A device shared by sessions: one executable at a time, and swaps that cost time.

As in Graphcore's stack (graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/
poplar_executor.cc), running another executable than the last one brings the last one's state to the
host, loads the new one, and brings its state back. What such a load costs no source tells;
*assumed*: two transfers of all bytes at the rates of the host's link, and a round trip each.
"""

import threading
import warnings
import weakref
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Program, Variable

if TYPE_CHECKING:
    from hloipu_runtime.session.session import Session
    from hloipu_runtime.session.shared import ProgramArray, SharedSpace

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


def constants_cycles(
    program: Program, machine: Machine, streams: Container[str] | None = None
) -> int:
    """Return the cycles of bringing loaded parameters to the device at once; by default all."""
    loaded = zip(program.parameters, program.loaded, strict=False)
    values = {v for port, v in loaded if streams is None or port.stream in streams}
    lying = [program.variables[n] for n, (v, _) in program.constants.items() if v in values]
    size_bytes = sum(v.mapping.tiles.count * v.bytes_per_tile for v in lying)
    return host_transfer(
        machine,
        [size_bytes],
        to_device=True,
        busiest_tile_bytes=sum(v.bytes_per_tile for v in lying),
    ).cycles


class Resident:
    """An executable that may lie on a device, with the state of one session."""

    def __init__(
        self, name: str, machine: Machine, memory: Mapping[str, Any], ipus: int = 1
    ) -> None:
        self.name = name
        self.machine = machine
        self.ipus = ipus
        """Of all replicas."""
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


class Compiled:
    """What a device takes: a `CompiledProgram`, or a `JaxProgram`, which has one."""


class SharedLoad(NamedTuple):
    """How a session is on a device that others share: beside them, with arrays in common."""

    device: "Device"
    program: Any
    """A `CompiledProgram`."""
    arrays: "tuple[ProgramArray, ...]"
    """The program's arrays by the names that they have on the device."""

    @property
    def layouts(self) -> "dict[str, tuple[Variable, ...]]":
        """Where the arrays lie that stay on the device, by name."""
        return {entry.name: entry.layouts for entry in self.arrays if entry.kind != "call"}

    @property
    def numbers_there(self) -> frozenset[int]:
        """The numbers of the parameters that are on the device already."""
        return frozenset(
            entry.number for entry in self.arrays if entry.name in self.device.space.arrays
        )


class Device:
    """One simulated device for several programs, which stay there together or take turns.

    `load` puts a program beside those that are loaded already: parameters of one name are one
    array, and what a program writes the next one reads. Memory has to suffice for all of them.

    Sessions of `program.session(device=device)` take turns; which of them runs has to lie on the
    device, and what is loaded together counts as one. `swaps` counts how often another one had to
    be brought there, `swap_cycles` what that took; the first load is free, as that of a session of
    its own is.

    `machine` is the name of a built-in machine or the path of a `.toml` file, by default that of
    the first program; `ipus` how many IPUs the device has, by default as many as its programs take.
    `warns=False`: executables that alternate are no cause for a warning.
    """

    @checked
    def __init__(
        self, machine: str | Path | None = None, *, ipus: Number | None = None, warns: bool = True
    ) -> None:
        self.swaps: int = 0
        self.swap_cycles: int = 0
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._here: weakref.ref[Resident] | None = None
        self._before: weakref.ref[Resident] | None = None
        self._alternations = 0
        self._has_warned = not warns
        self._machine = None if machine is None else load_machine(str(machine)).name
        self._ipus = ipus
        self.beside: dict[Resident, SharedLoad] = {}
        """What is loaded together."""
        self._together: Resident | None = None

    @checked
    def load(
        self, program: Compiled, *, names: Mapping[str, str] | None = None, **session: Any
    ) -> "Session":
        """Return a session of a program that stays on the device beside those loaded before.

        `program` is a `CompiledProgram`, or a `JaxProgram`; `session` are the options of its
        `session`. State and constants that have the name of an array on the device are that array
        and are left out; what comes with each call is taken from there too, through the host,
        unless `run(inputs=…)` gives it. `names`: other names for parameters, or for the beginning
        of names: `{"params": "state.params"}`. Closing the session makes room. Raises UsageError
        E2043 for another machine or too many IPUs, E2046 for an array of another type or shape,
        E2047 for one that replicas or partitions keep from being shared,
        DoesNotFit E1004 where memory does not suffice for all together, and what `session` raises.
        """
        from hloipu_runtime.session.shared import own_arrays

        given: Any = program
        compiled = given if hasattr(given, "memory_plan") else given.program
        if compiled.program.partitions > 1 and compiled.program.partitioning is None:
            raise UsageError(
                "E2047",
                f"{compiled.program.name!r} has {compiled.program.partitions} partitions, each "
                "with parts of its own: it shares no arrays",
                hint="have it take turns: program.session(device=device)",
            )
        arrays = own_arrays(compiled.program, compiled.parameter_names, names or {})
        loaded: Session = given.session(**session, device=SharedLoad(self, compiled, arrays))
        return loaded

    @property
    def arrays(self) -> dict[str, str]:
        """Type and shape, such as `f32[4,8]`, of each array that loaded programs share, by name."""
        return {name: shared.entry.form for name, shared in self.space.arrays.items()}

    @cached_property
    def space(self) -> "SharedSpace":
        """The arrays that programs share which are loaded together."""
        from hloipu_runtime.session.shared import SharedSpace

        return SharedSpace()

    @contextmanager
    def running(self, name: str) -> "Iterator[None]":
        """Have one of the programs run that are loaded together.

        Raises StreamError E2061 while another one does: they share arrays.
        """
        if not self._running.acquire(blocking=False):
            raise StreamError(
                "E2061",
                f"{name!r} is to run while another program runs on the device",
                expected="a device that does not run",
                found="a run",
                hint="run programs of one device one after the other",
            )
        try:
            yield
        finally:
            self._running.release()

    @checked
    def keep(self, resident: Resident, load: Any) -> None:
        """Have an executable stay beside others, or leave where `load` is None."""
        with self._lock:
            was_here = self._here is not None and self._here() is self._together
            if load is None:
                self.beside.pop(resident, None)
            else:
                self.beside[resident] = load
            self._together = _combined(list(self.beside)) if self.beside else None
            if was_here and self._together is not None:
                self._here = weakref.ref(self._together)

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
                self._machine = resident.machine.name
            if resident.machine.name != self._machine:
                raise UsageError(
                    "E2043",
                    f"{resident.name!r} is for {resident.machine.name}, the device is "
                    f"{self._machine}",
                    hint="give each machine a device of its own",
                )
            if self._ipus is not None and resident.ipus > self._ipus:
                raise UsageError(
                    "E2043",
                    f"{resident.name!r} is for {resident.ipus} IPUs, the device has {self._ipus}",
                    hint=f"make it with ipus={resident.ipus}, or compile for fewer",
                )

    @checked
    def bring(self, resident: Resident) -> int:
        """Have an executable on the device; return the cycles that its swap takes, 0 for none.

        Warns once (EngineSwapWarning) where it was there before what is there now.
        """
        with self._lock:
            if self._together is not None and resident in self.beside:
                resident = self._together
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


def _combined(residents: "list[Resident]") -> Resident:
    """Return what lies on a device together as one."""
    name = ", ".join(dict.fromkeys(resident.name for resident in residents))
    whole = Resident(name, residents[0].machine, {}, max(resident.ipus for resident in residents))
    whole.footprint = Footprint(
        *map(sum, zip(*(resident.footprint for resident in residents), strict=True))
    )
    return whole
