"""Queues of a session: opened for what is given, and those of the user's checked."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.program.program import Program, Queue
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.inputs import suggestion
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue
from hloipu_runtime.streams.per_host import EVERY_HOST, PerHost, of_host
from hloipu_runtime.streams.settings import parse_mode
from hloipu_runtime.streams.structure import LEAF, Structure


def spec_of_queue(queue: Queue) -> ElementSpec:
    """Return what the elements of a program's queue are."""
    leaves = tuple(LeafSpec(port.element_type, port.shape) for port in queue.streams)
    if queue.names and not queue.to_device:
        return ElementSpec(leaves, Structure("dict", queue.names, (LEAF,) * len(leaves)))
    return ElementSpec(leaves, names=queue.names)


def streams_of_queue(queue: Queue) -> tuple[str, ...]:
    """Return the program's streams that serve a queue, one for each leaf."""
    return tuple(port.stream for port in queue.streams)


def known_rates(
    program: Program, rates: Mapping[str, float], infeeds: Mapping[str, Any]
) -> dict[str, float]:
    """Return the rates of infeeds, of all hosts together where each makes elements of its own.

    Raises UsageError E3155 for names that no infeed has.
    """
    queues = {queue.name: queue for queue in seen_by_users(program).queues if queue.to_device}
    _same_names("infeed", rates, queues)
    hosts = max(program.hosts, 1)
    return {
        n: rate * hosts if isinstance(infeeds.get(n), PerHost) else rate
        for n, rate in rates.items()
    }


def opened_infeeds(
    program: Program,
    given: Mapping[str, Any],
    timeout: float,
    replicas: int = 1,
    *,
    host: int = EVERY_HOST,
    served: range | None = None,
) -> list[InfeedQueue]:
    """Return a queue for each infeed of the program; UsageError E3155 for others than those.

    Replica i of R takes the elements i, i + R, i + 2R and so on. What is given by `PerHost` has a
    queue for each host, of which its replicas take elements so. `host`: the one that is here alone;
    `served`: the replicas that are here, by default all. Raises what `_by_host` raises.
    """
    queues = {queue.name: queue for queue in seen_by_users(program).queues if queue.to_device}
    _same_names("infeed", given, queues)
    missing = [name for name in queues if name not in given]
    if missing:
        raise UsageError(
            "E3155",
            f"infeed {missing[0]!r} has no source",
            hint="give infeeds={name: arrays, iterable, function or source, …}; "
            "on the command line --infeed NAME=FILE",
        )
    queues_here: list[InfeedQueue] = []
    for name, queue in queues.items():
        for whose, source, count in _by_host(program, name, given[name], replicas, host):
            if isinstance(source, InfeedQueue):
                one = own_queue(queue, source, count, whose)
            else:
                one = InfeedQueue(
                    of_host(name, whose),
                    spec_of_queue(queue),
                    source,
                    timeout=timeout,
                    replicas=count,
                    streams=streams_of_queue(queue),
                )
            one.host = whose
            if whose == EVERY_HOST and served is not None:
                one.served = served
            queues_here.append(one)
    return queues_here


def opened_outfeeds(
    program: Program,
    given: Mapping[str, Any],
    timeout: float,
    replicas: int = 1,
    *,
    host: int = EVERY_HOST,
    by_host: bool = False,
) -> list[OutfeedQueue]:
    """Return a queue for each outfeed of the program, keeping all elements unless told otherwise.

    With several replicas, arrays of an element have one more dimension, the first: of the replicas.
    `by_host`: each host has queues of its own; `host`: the one that is here alone. Raises
    UsageError E3155 for names that no outfeed has, StreamError E2031 for unknown modes, and what
    `_by_host` raises.
    """
    queues = {queue.name: queue for queue in seen_by_users(program).queues if not queue.to_device}
    _same_names("outfeed", given, queues)
    queues_here: list[OutfeedQueue] = []
    for name, queue in queues.items():
        asked = given.get(name, queue.mode or "all")
        if by_host and not isinstance(asked, PerHost | OutfeedQueue):
            asked = PerHost([asked] * max(program.hosts, 1))
        for whose, mode, count in _by_host(program, name, asked, replicas, host):
            _check_mode(queue, mode.mode if isinstance(mode, OutfeedQueue) else mode)
            if isinstance(mode, OutfeedQueue):
                mode.bind(spec_of_queue(queue), streams_of_queue(queue))
                own_queue(queue, mode, count, whose)
            else:
                mode = OutfeedQueue(
                    of_host(name, whose),
                    mode,
                    spec_of_queue(queue),
                    timeout=timeout,
                    replicas=count,
                    streams=streams_of_queue(queue),
                )
            mode.host = whose
            queues_here.append(mode)
    return queues_here


def _by_host(
    program: Program, name: str, given: Any, replicas: int, here: int
) -> Iterator[tuple[int, Any, int]]:
    """Yield each host that has something of its own, what that is, and how many replicas it feeds.

    `here`: the only host that is here; what others have is left alone. Raises StreamError E2074
    where it is for another number of hosts, UsageError E2071 where one replica stands for all.
    """
    if not isinstance(given, PerHost):
        yield EVERY_HOST, given, replicas
        return
    hosts = max(program.hosts, 1)
    if replicas % hosts:
        raise UsageError(
            "E2071",
            f"replicas were declared identical, and each host has a queue {name!r} of its own",
            hint="run every replica, or give one source for all",
        )
    if here != EVERY_HOST:
        yield here, given.of_one(name, here, hosts), replicas // hosts
        return
    for host in range(hosts):
        yield host, given.of_one(name, host, hosts), replicas // hosts


Own = TypeVar("Own", InfeedQueue, OutfeedQueue)


def own_queue(queue: Queue, queue_of_user: Own, replicas: int = 1, host: int = EVERY_HOST) -> Own:
    """Return a queue that the user made, its streams being the program's; of one host, or all.

    Raises StreamError E2060 where its name or its elements are not those of the program's queue,
    E2070 where it is for another number of replicas.
    """
    name = of_host(queue.name, host)
    if queue_of_user.replicas != replicas:
        raise StreamError(
            "E2070",
            f"the queue given for {name!r} is for {queue_of_user.replicas} replicas, {replicas} "
            "take part",
            queue=name,
            expected=f"replicas={replicas}",
            found=f"replicas={queue_of_user.replicas}",
            hint=f"make it with replicas={replicas}, or give its source alone",
        )
    wanted, spec = spec_of_queue(queue), queue_of_user.spec
    elements = "" if spec is None else str(ElementSpec(spec.leaves))
    if (queue_of_user.name, elements) != (name, str(wanted)):
        raise StreamError(
            "E2060",
            f"the queue given for {name!r} of {wanted} is named {queue_of_user.name!r}, of "
            f"{elements}",
            queue=name,
            expected=f"{name} of {wanted}",
            found=f"{queue_of_user.name} of {elements}",
            hint="make it with the name and the elements of the program's queue, or give its "
            "source alone",
        )
    if isinstance(queue_of_user, InfeedQueue):
        queue_of_user.streams = streams_of_queue(queue)
    return queue_of_user


def _check_mode(queue: Queue, mode: Any) -> None:
    """Raise UsageError E3155 where the device does not make the sum or mean that is asked for."""
    asked = parse_mode(mode)
    if asked.on_device and asked.kind != queue.reduction:
        raise UsageError(
            "E3155",
            f"outfeed {queue.name!r} gives {queue.reduction or 'each element'}, not the {asked}",
            hint=f"compile with --outfeed {queue.name}={asked}:N",
        )


def _same_names(kind: str, given: Iterable[str], known: Mapping[str, Queue]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(
                "E3155", f"the program has no {kind} {name!r}", hint=suggestion(name, known)
            )
