"""Inputs of a session: state and constants of a run."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from hloipu_runtime.arguments import State
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.replica_keys import folded
from hloipu_runtime.nearest import did_you_mean
from hloipu_runtime.program.program import Array, Port, Program
from hloipu_runtime.program.seen import SeenState, number_of, seen_by_users
from hloipu_runtime.program.state_parts import part_of
from hloipu_runtime.simulate.run.ports import given_arrays


def given_state(
    program: Program,
    state: State,
    seed: int = 0,
    participant: int = 0,
    with_own: Set[str] = frozenset(),
) -> dict[str, Array]:
    """Return a participant's state by the names of the program's ports, in storage form and copied.

    An array with one dimension more, the first and of the number of replicas, has one for each.
    Of whole arrays each partition gets its block, where the program is partitioned. The state of
    random ops begins with the seed unless given, with another one for each replica; keys are folded
    with its number but for those in `with_own`, which are each replica's already.
    Raises UsageError E3154 for arrays that are missing or unknown, E3142 for those that do not fit.
    """
    ports = seen_by_users(program).state
    if not isinstance(state, Mapping):
        wanted = [port for port in ports if port.parameter >= 0]
        if len(state) != len(wanted):
            raise UsageError(
                "E3154",
                f"the program keeps {len(wanted)} arrays, {len(state)} were given",
                hint="give them in the order of the parameters, or by name",
            )
        state = {port.name: array for port, array in zip(wanted, state, strict=True)}
    given = _by_port(ports, state)
    missing = [port for port in ports if port.name not in given and port.parameter >= 0]
    if missing:
        raise UsageError(
            "E3154",
            f"state {missing[0].name!r} is not given, one of {len(missing)}",
            hint="give every array of the state, or load a checkpoint",
        )
    stored: dict[str, Array] = {}
    for port in ports:
        array = given.get(port.name)
        if array is None:
            replica = participant // program.partitions
            array = np.array([replica_seed(seed, replica), 0, 0], np.uint64)
        stored |= _stored(program, port, array, participant, with_own)
    return stored


def stored_state(
    program: Program, port: SeenState, array: Any, participant: int
) -> dict[str, Array]:
    """Return what a participant keeps of one array of the state, in storage form and copied.

    One with a dimension more, the first, has an array for each replica; keys stay as they are.
    """
    return _stored(program, port, array, participant, frozenset({port.name}))


def replica_seed(seed: int, replica: int) -> int:
    """Return where a replica's random ops begin; the first one's is the seed itself.

    Seeds of replicas are far apart, so that those of sessions with seeds 0, 1, 2 … never meet: the
    step is the odd number next to 2**64 over the golden ratio (Knuth: The Art of Computer
    Programming 3, 6.4).
    """
    return (seed + replica * 0x9E3779B97F4A7C15) % 2**64


def _by_port(ports: Sequence[SeenState], state: Mapping[Any, Any]) -> dict[str, Any]:
    names = {port.name for port in ports}
    numbers = {port.parameter: port.name for port in ports if port.parameter >= 0}
    by_port: dict[str, Any] = {}
    for key, array in state.items():
        name = numbers.get(key) if isinstance(key, int) else key
        if name not in names:
            raise no_such_state(key, names)
        _require_new(str(name), by_port)
        by_port[str(name)] = array
    return by_port


def no_such_state(key: Any, names: Iterable[str]) -> UsageError:
    """Return what is raised for a name or number that no array of the state has."""
    return UsageError(
        "E3154", f"the program keeps no state {key!r}", hint=suggestion(str(key), names)
    )


def _stored(
    program: Program, port: SeenState, array: Any, participant: int, with_own: Set[str]
) -> dict[str, Array]:
    """Return what a participant keeps of an array, of its own: the device overwrites it."""
    replica, partition = divmod(participant, program.partitions)
    given = _of_replica(
        program, Port(port.name, port.element_type, port.shape), port.parameter, array, replica,
        is_own=port.name in with_own,
    )  # fmt: skip
    if port.blocks is not None:
        given = port.blocks.block(given, partition)
    pieces = zip(port.ports, port.pieces(given), strict=True)
    return {
        port.name: part_of(piece, replica, program.replicas) if port.whole else np.array(piece)
        for port, piece in pieces
    }


def _of_replica(
    program: Program, port: Port, number: int, array: Any, replica: int, *, is_own: bool = False
) -> Array:
    """Return what a replica takes of what is given for a parameter, in storage form.

    `is_own`: it is this replica's already.
    """
    if not is_own and program.replicas > 1 and np.shape(array) == (program.replicas, *port.shape):
        array, is_own = np.asarray(array)[replica], True
    given = given_arrays([port], [array])[port.stream]
    return folded(given, replica) if number in program.keys and not is_own else given


def loaded_arrays(
    program: Program,
    given: Mapping[str, Any],
    participants: int = 1,
    known: Sequence[Mapping[str, Array]] = (),
) -> list[dict[str, Array]]:
    """Return the parameters that lie on the device as constants do, by program's stream, copied.

    One dictionary for each participant; all are the same one where no array differs. `given` has
    them by users' stream (`named_arrays`), perhaps with one more dimension, of replicas. `known`
    are what participants have of those that are not given. Raises UsageError E3154 for arrays that
    are missing, E3142 for those that do not fit.
    """
    seen = seen_by_users(program)
    ports = [
        parameter
        for parameter in seen.parameters[: seen.loaded]
        if parameter.stream in given or not known
    ]
    missing = [port.stream for port in ports if port.stream not in given]
    if missing:
        raise UsageError(
            "E3154",
            f"{missing[0]!r} is not given, one of {len(missing)} that are loaded once a session",
            hint="give constants={number: array, …}, or compile with a feed for it",
        )
    if seen.blocks:
        replicas = range(-(-participants // program.partitions))
        return _loaded_blocks(program, ports, given, known, replicas)
    first: dict[str, Array] = {}
    others: list[dict[str, Array]] = [{} for _ in range(-(-participants // program.partitions))]
    for port in ports:
        array, number = given[port.stream], number_of(port)
        is_own = program.replicas > 1 and np.shape(array) == (program.replicas, *port.shape)
        first[port.stream] = _of_replica(program, port, number, array, 0)
        if is_own or number in program.keys:
            for replica, own in enumerate(others):
                own[port.stream] = _of_replica(program, port, number, array, replica)
    whole = {stream: np.array(array) for stream, array in seen.into_pieces(first).items()}
    if known:
        pieces_by_replica = [seen.into_pieces(own) for own in others] or [{}]
        return [
            {
                **there,
                **whole,
                **pieces_by_replica[number // program.partitions % len(pieces_by_replica)],
            }
            for number, there in enumerate(known)
        ]
    if not others or not others[0]:
        return [whole] * participants
    pieces = [whole | seen.into_pieces(own) for own in others]
    return [pieces[number // program.partitions] for number in range(participants)]


def _loaded_blocks(
    program: Program,
    ports: Sequence[Port],
    given: Mapping[str, Any],
    known: Sequence[Mapping[str, Array]],
    replicas: range,
) -> list[dict[str, Array]]:
    """Return `loaded_arrays` of a partitioned program: each partition has its block."""
    seen, loaded = seen_by_users(program), list[dict[str, Array]]()
    for replica in replicas:
        whole = {
            port.stream: _of_replica(program, port, number_of(port), given[port.stream], replica)
            for port in ports
        }
        for number in range(len(loaded), len(loaded) + program.partitions):
            own = seen.into_pieces(seen.block_of(whole, number))
            before = known[number] if known else {}
            loaded.append({**before, **{stream: np.array(piece) for stream, piece in own.items()}})
    return loaded


def called_with(program: Program, given: Mapping[str, Any]) -> dict[str, Array]:
    """Return parameters that come in with each call by program's stream, of those given by users'.

    Raises UsageError E3142 for arrays that do not fit.
    """
    seen = seen_by_users(program)
    there = [port for port in seen.parameters[seen.loaded :] if port.stream in given]
    return seen.into_pieces(given_arrays(there, [given[port.stream] for port in there]))


def require_inputs(program: Program, known: Mapping[str, Array]) -> None:
    """Raise UsageError E3154 where a parameter that comes in with each call is not given."""
    seen = seen_by_users(program)
    for port in seen.parameters[seen.loaded :]:
        if seen.streams(port.stream)[0] not in known:
            raise UsageError(
                "E3154",
                f"{port.stream!r} is not given, which comes in with each call",
                hint="give run(inputs={number: array, …})",
            )


def scheduled(
    schedules: Mapping[Any, Any], calls: int, steps_done: int, steps_per_call: int
) -> list[dict[Any, Any]]:
    """Return the arrays that come in with each call, of schedules by name or number.

    A schedule is a function of the steps done before the call, or a list with a value for each
    call. Raises UsageError E3154 for a list of another length.
    """
    columns: dict[Any, Any] = {}
    for key, schedule in schedules.items():
        if callable(schedule):
            starts = range(steps_done, steps_done + calls * steps_per_call, steps_per_call or 1)
            columns[key] = [schedule(start) for start in starts]
            continue
        if not isinstance(schedule, Sequence | np.ndarray) or len(schedule) != calls:
            count = len(schedule) if isinstance(schedule, Sequence | np.ndarray) else "no"
            raise UsageError(
                "E3154",
                f"the schedule of {key!r} has {count} values; there are {calls} calls of "
                f"{steps_per_call} steps",
                hint="give a value for each call, or a function of the steps done",
            )
        columns[key] = schedule
    return [{key: values[k] for key, values in columns.items()} for k in range(calls)]


def named_arrays(program: Program, given: State, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is given for parameters by the streams that users see.

    Keys are numbers, streams or `names`, of all parameters by number; a list has the first ones in
    their order. Raises UsageError E3154 for what the program does not take, or takes twice.
    """
    if not len(given):
        return {}
    streams = seen_by_users(program).numbers
    called = {names[n]: stream for stream, n in streams.items() if 0 <= n < len(names)}
    if not isinstance(given, Mapping):
        if len(given) > len(streams):
            raise UsageError(
                "E3141",
                f"the program takes {len(streams)} arrays, {len(given)} were given",
                hint="pass one array for each parameter that is neither state nor fed, in order",
            )
        return dict(zip(streams, given, strict=False))
    named: dict[str, Any] = {}
    for given_key, array in given.items():
        key = f"parameter.{given_key}" if isinstance(given_key, int) else given_key
        key = called.get(key, key)
        _require_new(key, named)
        named[key] = array
        if key not in streams:
            raise UsageError(
                "E3154",
                f"the program takes no {key!r} from a session",
                hint=suggestion(str(key), [*called, *streams]),
            )
    return named


def _require_new(name: str | int, given: Mapping[Any, Any]) -> None:
    """Raise UsageError E3154 for an array that is given by its name and by its number."""
    if name in given:
        raise UsageError(
            "E3154", f"{name!r} is given twice: by name and by number", hint="give it once"
        )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return which of the known names may be meant, or what there is."""
    names = list(known)
    shown = ", ".join(map(repr, names[:6]))
    otherwise = (
        f"it has {shown}" if names else "it has none: compile with --feed NAME=N,… or --outfeed"
    )
    return did_you_mean(name, names, otherwise)
