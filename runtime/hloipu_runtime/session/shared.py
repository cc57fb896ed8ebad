"""Arrays that programs on one device share by name: which program has each as it is now.

As in Graphcore's engines, whose programs share the variables of one graph, an array stays on the
device between programs: what one of them writes, the next one reads. Programs that lay an array out
on tiles alike share its memory; others keep it in a layout of their own, and what was written is
exchanged into that before they run. A program that is compiled to get an array with each call gets
it through the host.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu_runtime.arguments import State
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.seen import SeenState, number_of, seen_by_users
from hloipu_runtime.session.inputs import called_with, loaded_arrays, named_arrays, stored_state
from hloipu_runtime.session.state import in_users_type
from hloipu_runtime.simulate.run.host import Arrays

if TYPE_CHECKING:
    from hloipu_runtime.session.engine import SessionEngine

STATE, CONSTANT, CALL = "state", "constant", "call"
_NO_NAME = re.compile(r"Arg_\d+(\.\d+)?|parameter\.\d+")
"""What XLA calls a parameter that has no name."""


@dataclass(frozen=True)
class ProgramArray:
    """A program's array that may be on the device by name."""

    name: str
    """On the device."""
    kind: str
    key: str
    """Of the state's port, or the stream of the parameter."""
    number: int
    element_type: str
    shape: tuple[int, ...]
    layouts: tuple[Variable, ...]
    """Of a state's pieces; of a constant, each of which the program reads; none: from the host."""
    division: tuple[Any, ...] = ()
    """Into blocks of partitions; empty: it is not divided."""

    @property
    def form(self) -> str:
        """Type and shape as HLO writes them."""
        return shape_text(self.element_type, self.shape)


def own_arrays(
    program: Program, parameter_names: Sequence[str], names: Mapping[str, str]
) -> tuple[ProgramArray, ...]:
    """Return a program's parameters that may be shared, by the names that they have on a device.

    Of state and of constants; parameters that come with each call are looked for on the device, but
    never put there. `names`: the device's name of a parameter, or the beginning of names, by the
    program's. Raises UsageError E2063 for one that no parameter has.
    """
    seen, unused = seen_by_users(program), set(names)

    def named(name: str) -> str:
        for ours, theirs in names.items():
            rest = name.removeprefix(ours)
            if name.startswith(ours) and (not rest or rest[0] in "[./"):
                unused.discard(ours)
                return theirs + rest
        return name

    entries = [
        ProgramArray(
            named(state.name), STATE, state.name, state.parameter, state.element_type,
            tuple(state.shape), tuple(program.variables[port.variable] for port in state.ports),
            state.blocks.division if state.blocks is not None else (),
        )
        for state in seen.state
        if state.parameter >= 0
    ]  # fmt: skip
    places: dict[int, list[Variable]] = {}
    for variable, (value, _) in program.constants.items():
        places.setdefault(value, []).append(program.variables[variable])
    of_stream = {
        port.stream: places.get(value, [])
        for port, value in zip(program.parameters, program.loaded, strict=False)
    }
    for at, port in enumerate(seen.parameters):
        number = number_of(port)
        name = parameter_names[number] if 0 <= number < len(parameter_names) else port.stream
        stream = seen.moved.get(port.stream, port.stream)
        split = seen.split.get(port.stream)
        streams = split.streams if split else (stream,)
        entries.append(
            ProgramArray(
                named(name), CONSTANT if at < seen.loaded else CALL, port.stream, number,
                port.element_type, tuple(port.shape),
                tuple(v for each in streams for v in of_stream.get(each, ())),
                seen.blocks[stream].division if stream in seen.blocks else (),
            )
        )  # fmt: skip
    if unused:
        known = ", ".join(state.name for state in entries[:8])
        raise UsageError(
            "E2063", f"the program has no parameter {min(unused)!r}", hint=f"it has {known}"
        )
    return tuple(state for state in entries if not _NO_NAME.fullmatch(state.name))


@dataclass
class SharedArray:
    """An array on the device."""

    entry: ProgramArray
    """As the program has it that wrote it last."""
    holder: "SharedArrays"
    version: int = 0


@dataclass
class SharedSpace:
    """What a device's programs share."""

    arrays: dict[str, SharedArray] = field(default_factory=dict)
    """By name."""
    parts: "list[SharedArrays]" = field(default_factory=list)
    """Of the sessions that are loaded, in their order."""


@dataclass(eq=False)
class SharedArrays:
    """One session's part in what a device's programs share."""

    machine: Machine
    program: Program
    arrays: tuple[ProgramArray, ...]
    space: SharedSpace
    engine: "SessionEngine | None" = None
    """Of the session, once it has begun."""
    called: Arrays | None = None
    """What the session gives with each call."""
    charge: Callable[[int], None] = lambda cycles: None
    """Told the cycles that bringing arrays up to date takes."""
    is_lost: bool = False
    """Whether a run failed and left no whole state."""
    versions: dict[str, int] = field(default_factory=dict)
    """By name, which version of it the session has."""
    constants: dict[str, Any] = field(default_factory=dict)
    """By stream, what is loaded now."""
    apart: set[str] = field(default_factory=set)
    """Streams of what calls are given in another way."""

    def completed(
        self, state: State | None, constants: State
    ) -> tuple[dict[Any, Any] | None, dict[str, Any]]:
        """Return what a session begins with: what is given, and what is on the device already.

        Constants are by stream.

        Raises UsageError E2046 for an array of another type or shape than the device's, and for one
        that is given and there.
        """
        kept = _by_name(
            state or {}, [port.name for port in self._ports.values() if port.parameter >= 0]
        )
        loaded = named_arrays(self.program, constants)
        for entry in self._there(STATE, CONSTANT):
            given = kept if entry.kind == STATE else loaded
            if {entry.key, entry.number} & given.keys():
                raise UsageError(
                    "E2046",
                    f"{entry.name!r} is given, and is on the device already",
                    hint="leave it out: programs on one device share arrays of one name; "
                    "names={own name: another} keeps them apart",
                )
            given[entry.key] = self._value(entry)
            self.versions[entry.name] = self.space.arrays[entry.name].version
        return kept if kept or state is not None else None, loaded

    def begin(
        self,
        engine: "SessionEngine",
        called: Arrays,
        constants: Mapping[str, Any],
        charge: Callable[[int], None],
    ) -> None:
        """Put on the device what the session begins with and is not there."""
        self.engine, self.called, self.charge = engine, called, charge
        self.take_constants(constants)
        for entry in self.arrays:
            if entry.kind == CALL and entry.key in constants:
                self.apart.add(entry.key)
            if entry.kind != CALL and entry.name not in self.space.arrays:
                self.space.arrays[entry.name] = SharedArray(entry, self)
                self.versions[entry.name] = 0
        self.space.parts.append(self)

    def take_constants(self, constants: Mapping[str, Any]) -> None:
        """Note what is loaded, by stream."""
        self.constants = {stream: np.array(array) for stream, array in constants.items()}

    def wrote(self, kind: str) -> None:
        """Note that the session has written its state, or has other constants."""
        for entry in self.arrays:
            shared = self.space.arrays.get(entry.name)
            if entry.kind == kind and shared is not None:
                shared.entry, shared.holder = entry, self
                shared.version += 1
                self.versions[entry.name] = shared.version

    def called_with(self, inputs: State) -> None:
        """Note that parameters come in with the call, and not from the device."""
        given = named_arrays(self.program, inputs)
        self.apart.update(entry.key for entry in self.arrays if entry.key in given)

    def refresh(self) -> None:
        """Bring the session's arrays to what others have written, and charge for it.

        Raises UsageError E2046 as `completed`, E2047 where replicas differ, E3156 where the writer
        lost its state.
        """
        engine, called = self.engine, self.called
        if engine is None or called is None:
            return
        stale = [
            entry
            for entry in self._there(STATE, CONSTANT, CALL)
            if self.versions.get(entry.name) != self.space.arrays[entry.name].version
            and entry.key not in self.apart
        ]
        values = {entry: self._value(entry) for entry in stale}
        cycles = sum(self._moving_cycles(entry) for entry in stale)
        states = engine.states
        for entry, array in values.items():
            if entry.kind == STATE:
                for number, state in enumerate(states):
                    state |= stored_state(self.program, self._ports[entry.key], array, number)
            elif entry.kind == CONSTANT:
                self.constants[entry.key] = array
        given = {entry.key: array for entry, array in values.items() if entry.kind == CALL}
        if given:
            called.inputs |= called_with(self.program, given)
        if any(entry.kind == STATE for entry in stale):
            engine.states = states
        if any(entry.kind == CONSTANT for entry in stale):
            engine.load(loaded_arrays(self.program, self.constants, engine.participants))
        for entry in stale:
            self.versions[entry.name] = self.space.arrays[entry.name].version
        if cycles:
            self.charge(cycles)

    def leave(self) -> None:
        """Hand what only this session has to others on the device; drop what none of them has.

        Where its state is lost, the others go on with what they had.
        """
        parts, arrays = self.space.parts, self.space.arrays
        parts.remove(self)
        if not self.is_lost:
            for part in parts:
                part.refresh()
        for name, shared in list(arrays.items()):
            if shared.holder is not self:
                continue
            heirs = [(part, entry) for part in parts for entry in part.arrays if entry.name == name]
            heirs = [(part, entry) for part, entry in heirs if entry.kind != CALL]
            if heirs:
                shared.holder, shared.entry = heirs[0]
                shared.holder.versions[name] = shared.version
            else:
                del arrays[name]

    def of_session(self, entry: ProgramArray) -> list[Any]:
        """Return an array as the session has it, for each replica that is run, in users' types.

        Raises UsageError E3156 where a run that failed left none.
        """
        if entry.kind == CONSTANT:
            return [self.constants[entry.key]]
        if self.is_lost or self.engine is None:
            raise UsageError(
                "E3156",
                f"{entry.name!r} is lost: a run of {self.program.name!r} failed, and left no state",
                hint="load the last checkpoint into that session, or close it",
            )
        states = self.engine.states
        each = self.program.partitions if self.program.partitioning is not None else 1
        return [
            in_users_type(self._ports[entry.key], states, n) for n in range(0, len(states), each)
        ]

    @cached_property
    def _ports(self) -> dict[str, SeenState]:
        return {port.name: port for port in seen_by_users(self.program).state}

    def _there(self, *kinds: str) -> Iterator[ProgramArray]:
        """Return the arrays that are on the device; UsageError E2046 for another type or shape."""
        for entry in self.arrays:
            shared = self.space.arrays.get(entry.name)
            if shared is None or entry.kind not in kinds or shared.holder is self:
                continue
            if (entry.element_type, entry.shape) != (shared.entry.element_type, shared.entry.shape):
                holder = shared.holder.program.name
                raise UsageError(
                    "E2046",
                    f"{entry.name!r} is {shared.entry.form} on the device, of {holder!r}; "
                    f"{self.program.name!r} has {entry.form}",
                    hint="parameters of one name are one array; "
                    "names={own name: another} keeps them apart",
                )
            if entry.kind != CALL and entry.division != shared.entry.division:
                raise UsageError(
                    "E2046",
                    f"{entry.name!r} is divided between IPUs in one way on the device, by "
                    f"{shared.holder.program.name!r}, and in another one by {self.program.name!r}",
                    hint="annotate it alike in both; names={own name: another} keeps them apart",
                )
            yield entry

    def _value(self, entry: ProgramArray) -> Any:
        """Return what an array is now: one for all replicas, or one for each."""
        shared = self.space.arrays[entry.name]
        arrays = shared.holder.of_session(shared.entry)
        replicas = self.program.replicas
        alike = all(_same(arrays[0], other) for other in arrays[1:])
        if not alike and len(arrays) != replicas:
            raise UsageError(
                "E2047",
                f"{entry.name!r} differs on the {len(arrays)} replicas of "
                f"{shared.holder.program.name!r}, and {self.program.name!r} has {replicas}",
                hint="compile both for as many replicas, or keep the arrays apart by names=",
            )
        is_key = entry.number in self.program.keys and replicas > 1
        if alike and len(arrays[0].shape) == len(entry.shape) and not is_key:
            return arrays[0]
        return np.stack(arrays if len(arrays) == replicas else [arrays[0]] * replicas)

    def _moving_cycles(self, entry: ProgramArray) -> int:
        """Return the cycles of bringing what another program wrote to where this one reads it."""
        shared = self.space.arrays[entry.name]
        source, machine = shared.entry, self.machine
        size_bytes = (
            int(np.prod(entry.shape, dtype=np.int64)) * user_dtype(entry.element_type).itemsize
        )
        sent = max((variable.bytes_per_tile for variable in source.layouts), default=0)
        if entry.kind == CALL:  # its own transfer brings it to the device
            out = host_transfer(machine, [size_bytes], to_device=False, busiest_tile_bytes=sent)
            return out.cycles
        places = {layout(variable) for variable in source.layouts}
        cycles = 0
        for target in entry.layouts:
            if layout(target) in places:
                continue
            ipus = {variable.ipu for variable in source.layouts}
            traffic = TileTraffic(sent, target.bytes_per_tile)
            cycles += sync(machine, len(ipus | {target.ipu})).cycles
            cycles += exchange(machine, [traffic]).cycles
            if ipus and target.ipu not in ipus:
                flows = [Flow(min(ipus), target.ipu, size_bytes)]
                system = max(self.program.ipus, shared.holder.program.ipus)
                cycles += link_transfer(machine, flows, system).cycles
        return cycles


def _by_name(given: Any, keys: Sequence[str]) -> dict[Any, Any]:
    return dict(given) if isinstance(given, Mapping) else dict(zip(keys, given, strict=False))


def layout(variable: Variable) -> tuple[Any, ...]:
    """Return what is equal where two programs have an array on the same tiles in the same parts."""
    return variable.ipu, variable.element_type, variable.shape, variable.mapping


def _same(a: Any, b: Any) -> bool:
    """Whether arrays of one type and shape are the same, bit by bit."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (a, b))
    return bool(np.array_equal(first, second))
