"""Session engine: owns program and state, and is replaced with the constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from hloipu_runtime.arguments import DEFAULT_LIVE_BYTES, DEFAULT_TIMEOUT_SECONDS
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.native.settings import kernels_allowed
from hloipu_runtime.program.loading import loaded_with
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.device import Device, SharedLoad
from hloipu_runtime.session.queues import opened_infeeds, opened_outfeeds
from hloipu_runtime.session.state import require_alike, steps_at
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.host_memory import memory_told, require_host_memory
from hloipu_runtime.simulate.participants import check_host_memory, check_participants
from hloipu_runtime.simulate.replicated import ReplicatedEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts, require_mode
from hloipu_runtime.simulate.run.kept_state import streams_before_work
from hloipu_runtime.streams.host import Clock, StreamHost
from hloipu_runtime.streams.participants import hosts_of_all
from hloipu_runtime.streams.per_host import EVERY_HOST, Elsewhere, PerHost

Engine = FunctionalEngine | ExactEngine | ReplicatedEngine


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session runs; UsageError E3140 for a mode that is none."""

    mode: str = "functional"
    poison: bool = False
    """Fill tile memories before use, in exact mode."""
    seed: int = 0
    """Where stateful random ops begin."""
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    """Seconds that the device waits for one element of a queue."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Elements per second that the host makes of an infeed; others are always there in time."""
    device: Device | SharedLoad | None = None
    """Shared with other sessions; None: a device of the session's own."""
    identical: bool = False
    """Whether all replicas have the same state and data: the first one stands for all."""

    live_bytes: int = DEFAULT_LIVE_BYTES
    """That it may take of the host's memory."""
    max_iterations: int | None = None
    """Turns that a loop within the step may take each time it is entered; None: any number."""
    elsewhere: Elsewhere | None = None
    """Participants that other processes run, those of other hosts; None: all are here."""
    fast: bool | None = None
    """Whether kernels may be compiled; None: where that is allowed around a call."""

    def __post_init__(self) -> None:
        require_mode(self.mode)
        if not isinstance(self.elsewhere, Elsewhere | None):
            raise UsageError(
                "E3180",
                f"elsewhere is {type(self.elsewhere).__name__}, not what other processes run",
                hint="leave it out; hloipu.hosts.open_session gives it",
            )


def replicas_of(program: Program, numbers: range) -> range:
    """Return the replicas that participants of these numbers are of."""
    each = program.partitions
    return range(numbers.start // each, -(-numbers.stop // each))


def numbers_here(program: Program, settings: SessionSettings) -> range:
    """Return which participants of a program a session runs.

    Raises UsageError E2071 where one replica cannot be run alone, and what `check_participants` and
    `check_host_memory` raise.
    """
    numbers = range(1 if settings.identical else program.participants)
    if settings.identical:
        require_alike(program)
    else:
        check_participants(program)
    if settings.elsewhere is not None:
        numbers = settings.elsewhere.numbers
    check_host_memory(program, len(numbers))
    return numbers


def by_host(
    settings: SessionSettings, infeeds: Mapping[str, Any], outfeeds: Mapping[str, Any]
) -> bool:
    """Whether hosts have queues of their own."""
    if settings.elsewhere is not None and settings.elsewhere.host != EVERY_HOST:
        return True
    return any(isinstance(x, PerHost) for x in (*infeeds.values(), *outfeeds.values()))


def opened_host(
    program: Program,
    settings: SessionSettings,
    numbers: range,
    infeeds: Mapping[str, Any],
    outfeeds: Mapping[str, Any],
    arrays: Arrays,
    clock: Clock,
) -> StreamHost:
    """Return the host of participants of these numbers, with a queue for each feed."""
    elsewhere, timeout = settings.elsewhere, settings.timeout
    here = EVERY_HOST if elsewhere is None else elsewhere.host
    replicas = 1 if settings.identical else program.replicas
    served = None if elsewhere is None else replicas_of(program, numbers)
    kept = len(served) if served is not None and here == EVERY_HOST else replicas
    has_own = by_host(settings, infeeds, outfeeds)
    return StreamHost(
        opened_infeeds(program, infeeds, timeout, replicas, host=here, served=served),
        opened_outfeeds(program, outfeeds, timeout, kept, host=here, by_host=has_own),
        arrays,
        replica=numbers.start // program.partitions,
        host=max(here, 0),
        clock=clock,
        split=seen_by_users(program).split,
    )


class SessionEngine:
    """A program's engine, for all participants that are run, and the state that it has."""

    def __init__(
        self,
        program: Program,
        settings: SessionSettings,
        participants: int,
        host: StreamHost,
        now: Callable[[int], int],
        constants: Sequence[Mapping[str, Array]],
    ) -> None:
        self.program = program
        self.settings = settings
        self.participants = participants
        self.host = host
        self._now = now
        require_host_memory(program, settings.mode, settings.live_bytes, participants)
        with kernels_allowed(settings.fast):
            self.engine: Engine = self._made(constants)

    def load(self, constants: Sequence[Mapping[str, Array]]) -> None:
        """Take other arrays in place of the constants; the state stays as it is."""
        kept = self.states
        with kernels_allowed(self.settings.fast):
            self.engine = self._made(constants)
        self.states = kept

    def run(self, counts: Counts) -> None:
        """Run the program once."""
        settings = self.settings
        with (
            memory_told(self.program, settings.mode, settings.live_bytes),
            kernels_allowed(settings.fast),
        ):
            self.engine.run(self.host, counts)

    def counts_of(self, place: int) -> Counts:
        """Return what one of several participants counted in the last run, or counts in this."""
        assert isinstance(self.engine, ReplicatedEngine)
        return self.engine.counts[place]

    @property
    def states(self) -> list[dict[str, Array]]:
        """The state of each participant that is run, in storage form."""
        if isinstance(self.engine, ReplicatedEngine):
            return self.engine.states
        return [self.engine.state]

    @states.setter
    def states(self, arrays: list[dict[str, Array]]) -> None:
        if isinstance(self.engine, ReplicatedEngine):
            self.engine.states = arrays
        else:
            self.engine.state = arrays[0]

    def steps_kept(self, error: BaseException, iterations: int, loop_path: str) -> int | None:
        """Return of how many whole steps a run that failed left the state; None: of none.

        `iterations`: in which iteration of the program's loop it failed, counted from 1;
        `loop_path`: of that loop, empty where there is none.
        """
        if not self.program.state:
            return max(0, iterations - 1)
        if isinstance(self.engine, FunctionalEngine):
            return steps_at(self.engine.kept_moment, iterations)
        if isinstance(self.engine, ReplicatedEngine):
            others = [
                counts.runs[loop_path] if loop_path else 1 for counts in self.engine.counts[1:]
            ]
            everyone = zip(self.engine.moments, [iterations, *others], strict=True)
            reached = {steps_at(moment, iteration) for moment, iteration in everyone}
            return reached.pop() if len(reached) == 1 else None
        if isinstance(error, StreamError) and self._took_nothing_but_data(error):
            return max(0, iterations - 1)
        return None

    def _made(self, constants: Sequence[Mapping[str, Array]]) -> Engine:
        """Return an engine that has the program with what is loaded beside it.

        `constants`: of each participant, one dictionary where they are the same.
        """
        loaded: dict[int, Program] = {}
        engines: list[FunctionalEngine | ExactEngine] = []
        for mine in constants:
            if id(mine) not in loaded:
                loaded[id(mine)] = loaded_with(self.program, mine)
            program = loaded[id(mine)]
            if self.settings.mode == "functional":
                engines.append(FunctionalEngine(program))
            else:
                engines.append(ExactEngine(program, poison=self.settings.poison))
        elsewhere = self.settings.elsewhere
        if self.participants == 1 and elsewhere is None:
            return engines[0]
        check_participants(self.program)
        replicated = ReplicatedEngine(self.program, engines, elsewhere)
        blocks = seen_by_users(self.program).blocks_of_streams
        replicated.hosts = tuple(
            hosts_of_all(self.host, self.program, self._now, blocks, elsewhere)
        )
        return replicated

    def _took_nothing_but_data(self, error: StreamError) -> bool:
        """Whether a run failed at a feed, before the step wrote anything."""
        early = streams_before_work(self.program)
        return any(
            queue.name == error.queue
            and queue.to_device
            and all(port.stream in early for port in queue.streams)
            for queue in self.program.queues
        )
