"""State of a session's participants: initial, visible, and after a failure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hloipu_runtime.arguments import State
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.storage import from_storage
from hloipu_runtime.program.program import Array, Program, StatePort
from hloipu_runtime.program.seen import SeenState, seen_by_users
from hloipu_runtime.program.state_parts import joined
from hloipu_runtime.session.checkpoint import Checkpoint, differing
from hloipu_runtime.session.inputs import given_state, no_such_state
from hloipu_runtime.simulate.run.kept_state import Moment
from hloipu_runtime.streams.per_host import Elsewhere

States = list[dict[str, Array]]
"""Of each participant, arrays in storage form by name."""


def begun_states(program: Program, state: State, seed: int, participants: Iterable[int]) -> States:
    """Return what each participant begins with: the same but for keys, parts and arrays of its own.

    Raises what `given_state` raises.
    """
    return [given_state(program, state, seed, number) for number in participants]


def resumed_states(program: Program, checkpoint: Checkpoint, participants: Iterable[int]) -> States:
    """Return what each participant goes on with from a checkpoint of this program.

    Keys that were saved once for all, by a trainer or a single replica, differ by replica again.
    """
    others = {name for name in checkpoint.arrays if name not in checkpoint.of(program, 0)}
    own = {name.partition(": ")[2] for name in others}
    return [
        given_state(program, checkpoint.of(program, number), participant=number, with_own=own)
        for number in participants
    ]


def in_users_types(
    program: Program,
    states: Sequence[Mapping[str, Array]],
    number: int,
    names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Return copies of a participant's state: parts of all replicas together, and all pieces.

    `names`: of the arrays that are wanted; UsageError E3154 for those that are not there.
    """
    ports = {port.name: port for port in seen_by_users(program).state}
    wanted = list(ports if names is None else names)
    for name in wanted:
        if name not in ports:
            raise no_such_state(name, ports)
    return {name: in_users_type(ports[name], states, number) for name in wanted}


def in_users_type(seen: SeenState, states: Sequence[Mapping[str, Array]], number: int) -> Any:
    """Return a copy of one array of a participant's state."""
    if seen.blocks is not None:
        count = seen.blocks.partitions
        first = number // count * count
        blocks = [
            seen.joined([_of_replicas(port, states, n, count) for port in seen.ports])
            for n in range(first, first + count)
        ]
        array = seen.blocks.joined(blocks, seen.name)
    else:
        array = seen.joined([_of_replicas(port, states, number, 1) for port in seen.ports])
    return np.array(from_storage(array, seen.element_type))


def _of_replicas(
    port: StatePort, states: Sequence[Mapping[str, Array]], number: int, partitions: int
) -> Array:
    if port.whole:
        alike = states[number % partitions :: partitions]
        return joined([each[port.name] for each in alike], port.whole)
    return states[number][port.name]


def require_alike(program: Program) -> None:
    """Raise UsageError E2071 where one replica cannot stand for all."""
    if program.keys:
        raise UsageError(
            "E2071",
            "replicas were declared identical, and each draws random numbers from a key of its own",
            hint="run every replica, or compile with --replica-keys same",
        )
    if program.partitioning is not None:
        raise UsageError(
            "E2071",
            "replicas were declared identical, and each partition has another block of the arrays",
            hint="run every participant",
        )
    if any(port.whole for port in program.state):
        raise UsageError(
            "E2071",
            "replicas were declared identical, and each keeps another part of the state",
            hint="run every replica, or compile without --shard-optimizer",
        )


@dataclass(frozen=True, slots=True)
class Participants:
    """Those of a program that a session runs, and where the others are."""

    program: Program
    numbers: range
    """Of those that are run here."""
    identical: bool
    """Whether the first one stands for all."""
    elsewhere: Elsewhere | None

    def together(self, mine: States, *, whole: bool = False) -> tuple[States, int]:
        """Return states of participants, and the number of the first one, from those run here.

        Where others are elsewhere: of all, with what arrays of those here have there; `whole`: all
        that they have. All processes call this at once then.
        """
        if self.elsewhere is None:
            return mine, self.numbers.start
        is_divided = len(self.numbers) % self.program.partitions > 0
        names = tuple(mine[0]) if whole else names_in_parts(self.program, is_divided=is_divided)
        if not names:
            return mine, self.numbers.start
        return of_all(self.elsewhere, mine, names, self.program.participants), 0

    def of_replica(self, mine: States, replica: int, names: Iterable[str] | None) -> dict[str, Any]:
        """Return copies of a replica's state in the user's types: its first partition's.

        Raises UsageError E2072 where it is not here, and what `in_users_types` raises.
        """
        if not 0 <= replica < self.program.replicas:
            raise UsageError(
                "E2072",
                f"there is no replica {replica}",
                hint=f"the program has {self.program.replicas}, numbered from 0",
            )
        number = 0 if self.identical else replica * self.program.partitions
        if number not in self.numbers:
            raise UsageError("E2072", f"replica {replica} is not of this host")
        states, first = self.together(mine)
        return in_users_types(self.program, states, number - first, names)

    def saved(self, states: tuple[States, int], numbers: range) -> dict[str, Any]:
        """Return what a checkpoint has of some participants' states; see `together`."""
        # Arrays in blocks are one for all partitions of a replica: the first one holds them.
        blocks = seen_by_users(self.program).blocks
        holders = numbers[:: self.program.partitions if blocks else 1]
        each = [in_users_types(self.program, states[0], n - states[1]) for n in holders]
        return differing(each, holders)


def names_in_parts(program: Program, *, is_divided: bool) -> tuple[str, ...]:
    """Return the arrays of the program's state that no participant's process has whole.

    `is_divided`: processes have some partitions of a replica.
    """
    parted = [port.name for port in program.state if port.whole]
    if is_divided:
        seen = [port for port in seen_by_users(program).state if port.blocks is not None]
        parted += [port.name for each in seen for port in each.ports]
    return tuple(dict.fromkeys(parted))


def of_all(elsewhere: Elsewhere, states: States, names: Sequence[str], participants: int) -> States:
    """Return the state of all participants; of those `elsewhere`, arrays of these names.

    All processes call this at once.
    """
    numbers, group = elsewhere.numbers, tuple(range(participants))
    mine = {n: [own[name] for name in names] for n, own in zip(numbers, states, strict=True)}
    brought = elsewhere.exchange("state", group, mine)
    gathered = [dict(zip(names, brought[n], strict=True)) for n in group]
    gathered[numbers.start : numbers.stop] = states
    return gathered


def steps_at(moment: Moment, iterations: int) -> int | None:
    """Return how many steps are done at a moment of a run in an iteration, counted from 1."""
    return {"begin": 0, "turn": iterations - 1, "following": iterations, "end": iterations}.get(
        moment
    )
