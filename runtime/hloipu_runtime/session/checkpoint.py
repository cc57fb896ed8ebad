"""Checkpoints: the state of a session in a file that is whole or refused.

Written beside the old file and put in its place at once, so that a process that dies at any moment
leaves the one or the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from hloipu_runtime.atomic_file import remove_unfinished
from hloipu_runtime.errors import ArtefactError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program_io.frame.frame import Frame, write_frame
from hloipu_runtime.streams.element import LeafSpec
from hloipu_runtime.streams.per_host import EVERY_HOST, host_of

KIND = "checkpoint"
SCHEMA = "hloipu.checkpoint/1"
_KEYS = {"schema", "program", "names", "steps", "cycles", "positions"}
_MOST = 2**62


@dataclass(frozen=True)
class Checkpoint:
    """What a session goes on from."""

    program: str
    """Name of the program."""
    steps: int
    """Steps that were done."""
    cycles: int
    """Simulated cycles that they took."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Of each infeed: the elements that the device had taken."""
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)
    """State by name, in the user's types; of other participants where it differs."""

    def save(self, path: str | Path) -> None:
        """Write it, and remove what killed writers of it left; UsageError E3004: it cannot be."""
        meta = {
            "schema": SCHEMA,
            "program": self.program,
            "names": list(self.arrays),
            "steps": self.steps,
            "cycles": self.cycles,
            "positions": dict(sorted(self.positions.items())),
        }
        arrays = {f"state.{n}": array for n, array in enumerate(self.arrays.values())}
        remove_unfinished(path)
        write_frame(path, Frame(KIND, meta, arrays))

    def of_host(self, host: int) -> "Checkpoint":
        """Return the same with where the feeds stand that a host has, or all hosts together."""
        here = (EVERY_HOST, host)
        positions = {n: at for n, at in self.positions.items() if host_of(n)[0] in here}
        return replace(self, positions=positions)

    def require_for(self, program: Program) -> None:
        """Raise UsageError E3157 unless it is of a program of this name and with this state."""
        if self.program != program.name:
            raise _foreign(f"it was saved from {self.program!r}, this is {program.name!r}")
        variables = {
            port.name: LeafSpec(port.element_type, port.shape)
            for port in seen_by_users(program).state
        }
        others = {
            of_participant(name, number): variable
            for number in range(1, program.participants)
            for name, variable in variables.items()
        }
        wanted = {**variables, **{k: v for k, v in others.items() if k in self.arrays}}
        odd = sorted(self.arrays.keys() - wanted.keys())
        if odd:
            raise _foreign(f"state {odd[0]!r} is only in the file")
        self.require_arrays(wanted)

    def require_arrays(self, wanted: Mapping[str, LeafSpec]) -> None:
        """Raise UsageError E3157 unless it has arrays of these names, types and shapes."""
        for name, variable in wanted.items():
            array = self.arrays.get(name)
            if array is None:
                raise _foreign(f"state {name!r} is only in the program")
            if array.shape != variable.shape or array.dtype != user_dtype(variable.element_type):
                raise _foreign(
                    f"state {name!r} is {array.dtype}{list(array.shape)} in the file and "
                    f"{variable.element_type}{list(variable.shape)} in the program"
                )

    def require_positions(self, taken: Mapping[str, int]) -> None:
        """Raise UsageError E3157 unless it says of each of these feeds, and no other, how far.

        `taken`: the elements of each that a step takes at least. What its steps have taken, a feed
        has given.
        """
        odd = sorted(taken.keys() ^ self.positions.keys())
        if odd:
            raise _foreign(f"the position of the feed {odd[0]!r} is only in one of the two")
        for name, each in taken.items():
            if self.positions[name] < self.steps * each:
                raise _foreign(
                    f"the feed {name!r} stands at element {self.positions[name]:,} after "
                    f"{self.steps:,} steps, each of which takes {each:,}"
                )

    def of(self, program: Program, participant: int) -> dict[str, Array]:
        """Return the state of one participant by name, where it is this program's.

        Arrays in blocks are those of its replica, whole: its first participant's.
        """
        seen = seen_by_users(program)
        if seen.blocks:
            participant -= participant % program.partitions
        names = [port.name for port in seen.state]
        return {
            name: self.arrays.get(of_participant(name, participant), self.arrays[name])
            for name in names
        }


def of_participant(name: str, number: int) -> str:
    """Return what an array of another participant than the first goes by in a checkpoint.

    Arrays that are the same as the first one's are left out.
    """
    return f"participant {number}: {name}" if number else name


def differing(states: Sequence[Mapping[str, Array]], numbers: Sequence[int]) -> dict[str, Array]:
    """Return the state of participants of these numbers as a checkpoint, or its part, holds it."""
    arrays = {of_participant(name, numbers[0]): array for name, array in states[0].items()}
    for number, state in zip(numbers[1:], states[1:], strict=True):
        for name, array in state.items():
            if array.tobytes() != states[0][name].tobytes():
                arrays[of_participant(name, number)] = array
    return arrays


def checkpoint_of(frame: Frame, name: str) -> Checkpoint:
    """Return the checkpoint that a file holds; ArtefactError E4012 for a frame that is none."""
    meta = frame.meta
    if meta.keys() != _KEYS or meta["schema"] != SCHEMA:
        raise _refused(name, f"it is not of the schema {SCHEMA}")
    names = meta["names"]
    if not _texts(names) or [f"state.{n}" for n in range(len(names))] != list(frame.arrays):
        raise _refused(name, "its names are not those of its arrays")
    positions = meta["positions"]
    is_plain = isinstance(positions, dict) and all(map(str.isprintable, positions))
    if not is_plain or not all(map(_is_count, positions.values())):
        raise _refused(name, "its infeeds' positions are not numbers")
    if not (_is_count(meta["steps"]) and _is_count(meta["cycles"])):
        raise _refused(name, "it does not say how far it is")
    if not isinstance(meta["program"], str) or not meta["program"].isprintable():
        raise _refused(name, "its program has no name")
    return Checkpoint(
        meta["program"],
        meta["steps"],
        meta["cycles"],
        positions,
        dict(zip(names, frame.arrays.values(), strict=True)),
    )


def _texts(names: Any) -> bool:
    return (
        isinstance(names, list)
        and all(isinstance(name, str) and name.isprintable() for name in names)
        and len(frozenset(names)) == len(names)
    )


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < _MOST


def _refused(name: str, what: str) -> ArtefactError:
    return ArtefactError("E4012", f"no checkpoint: {what}", name=name, hint="take an older one")


def _foreign(what: str) -> UsageError:
    return UsageError(
        "E3157",
        f"the checkpoint is not of this program: {what}",
        hint="load it into a session of the program that it was saved from",
    )
