"""Sessions: resident state from run to run, fed by queues."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hloipu_runtime.arguments import Progress, State, checked
from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.counting import ChargePlan, spent_of
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program.step_elements import elements_per_step
from hloipu_runtime.report.build import About, profile_of_run
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.checkpoint import Checkpoint
from hloipu_runtime.session.clock import SessionClock
from hloipu_runtime.session.device import Device, Resident, SharedLoad, constants_cycles
from hloipu_runtime.session.engine import (
    SessionEngine,
    SessionSettings,
    by_host,
    numbers_here,
    opened_host,
)
from hloipu_runtime.session.host_parts import load_checkpoint, save_index, save_part
from hloipu_runtime.session.inputs import (
    called_with,
    loaded_arrays,
    named_arrays,
    require_inputs,
    scheduled,
)
from hloipu_runtime.session.kept_state import KeptState
from hloipu_runtime.session.queues import known_rates
from hloipu_runtime.session.run_result import SessionRun
from hloipu_runtime.session.shared import CONSTANT, STATE, SharedArrays
from hloipu_runtime.session.state import Participants, States, begun_states, resumed_states
from hloipu_runtime.simulate.run.host import Arrays, Counts, TurnLimit
from hloipu_runtime.simulate.run.ports import taken_arrays
from hloipu_runtime.streams.outfeed import Arrived, OutfeedQueue, together
from hloipu_runtime.streams.per_host import EVERY_HOST
from hloipu_runtime.streams.rate import interval_cycles


class Session:
    """A program with its state on the simulated device; close it, or use it as a context.

    Raises UsageError: E3140 for a mode that is none, E3154 for state or constants that are missing
    or unknown, E3155 for queues that are, E3142 for arrays that do not fit.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        about: About,
        *,
        state: State | None = None,
        constants: State = (),
        infeeds: Mapping[str, Any] | None = None,
        outfeeds: Mapping[str, Any] | None = None,
        settings: SessionSettings | None = None,
    ) -> None:
        self.settings: SessionSettings = settings or SessionSettings()
        self.program = program
        self._seen = seen_by_users(program)
        self.costs = costs
        self.about = about
        self.steps: int = 0
        """Steps done, those before a checkpoint that was loaded included."""
        self._numbers = numbers_here(program, self.settings)
        """Of the participants that are run here."""
        identical, elsewhere = self.settings.identical, self.settings.elsewhere
        self._participants = Participants(program, self._numbers, identical, elsewhere)
        self._times = step_times(costs)
        self._charges = ChargePlan(costs)
        self.rates: dict[str, float] = known_rates(program, self.settings.rates, infeeds or {})
        """Elements per second that the host makes, of the infeeds for which that is stated."""
        taken = elements_per_step(program)
        self._taken = {name: count // program.replicas for name, count in taken.items()}
        """Elements of each infeed that a replica takes in a step."""
        queues = infeeds or {}, outfeeds or {}
        self._by_host = by_host(self.settings, *queues)
        """Whether hosts have queues of their own."""
        hz = costs.machine.chip.clock_hz
        intervals = [taken[name] * interval_cycles(hz, rate) for name, rate in self.rates.items()]
        self._clock = SessionClock(self._times, max(intervals, default=Fraction(0)))
        self._turn_limit = TurnLimit(
            self.settings.max_iterations, about.sources, frozenset({self._times.loop_path})
        )
        self._counts = Counts()
        self._calls_done = 0
        load = self.settings.device or Device()
        self._device = load.device if isinstance(load, SharedLoad) else load
        ipus = program.ipus * len(self._numbers)
        self._resident = Resident(program.name, costs.machine, about.memory, ipus)
        self._device.admit(self._resident)
        given = self._named(constants)
        self._shared: SharedArrays | None = None
        if isinstance(load, SharedLoad):
            space = self._device.space
            self._shared = SharedArrays(costs.machine, program, load.arrays, space)
            state, given = self._shared.completed(state, given)
        self._runs: Counter[str] = Counter()
        begun: States | None = None
        if state is not None or not any(port.parameter >= 0 for port in program.state):
            begun = begun_states(
                program, {} if state is None else state, self.settings.seed, self._numbers
            )
        self._arrays = Arrays(called_with(program, given))
        self._loaded = self._loaded_with(given)
        self._host = opened_host(
            program, self.settings, self._numbers, *queues, self._arrays, self._now
        )
        self._kept = KeptState(program, self._host.infeeds, self._taken, begun)
        self._engine = SessionEngine(
            program, self.settings, len(self._numbers), self._host, self._now, self._loaded
        )
        if self._shared is not None and isinstance(load, SharedLoad):
            if begun is not None:
                self._kept.require(self._engine)
            self._shared.is_lost = not self._kept.is_there
            self._shared.begin(self._engine, self._arrays, given, self._clock.load)
            self._device.keep(self._resident, load)

    @property
    def cycles(self) -> int:
        """Simulated cycles that the steps took."""
        return self._clock.now

    @property
    def idle_cycles(self) -> int:
        """Of these, cycles of waiting for the host, in this session."""
        return self._clock.idle_cycles

    @property
    def loading_cycles(self) -> int:
        """Of all cycles, those of loading the executable again after others, or constants."""
        return self._clock.loading_cycles

    @checked
    def load_constants(self, constants: State) -> None:
        """Load other arrays in place of the constants; the state stays as it is.

        It takes a transfer of their bytes, a round trip included: see `loading_cycles`.
        Raises UsageError E3154 for arrays that are missing or unknown, E3142 for those that do not
        fit, E3156 where the state is lost.
        """
        self._host.refuse_state(self.steps)
        named = self._named(constants)
        arrays = self._loaded_with(named)
        if self._kept.lost:
            self._kept.require(self._engine)
        self._load(arrays, named)

    def _load(
        self, arrays: list[dict[str, Array]], named: dict[str, Any], streams: Any = None
    ) -> None:
        """Transfer arrays in place of those loaded: of all streams, or of some."""
        self._engine.load(arrays)
        self._loaded = arrays
        self._clock.load(constants_cycles(self.program, self.costs.machine, streams))
        if self._shared is not None:
            self._shared.take_constants(named)
            self._shared.wrote(CONSTANT)

    def _loaded_with(
        self, given: Mapping[str, Any], known: Sequence[Mapping[str, Array]] = ()
    ) -> list[dict[str, Array]]:
        """Return what is loaded for each participant here; see `loaded_arrays`."""
        # Those elsewhere are let go; all partitions of a replica are loaded at once.
        numbers = self._numbers
        behind = -numbers.stop % self.program.partitions
        before = [*list(known[:1]) * numbers.start, *known, *list(known[:1]) * behind]
        return loaded_arrays(self.program, given, numbers.stop, before)[
            numbers.start : numbers.stop
        ]

    def _named(self, given: State) -> dict[str, Any]:
        return named_arrays(self.program, given, self.about.parameter_names)

    def _take(self, named: dict[str, Any]) -> None:
        """Have other arrays from here on: with the next call, or by a transfer, if loaded."""
        if not named:
            return
        seen = self._seen
        called = called_with(self.program, named)
        anew = [port.stream for port in seen.parameters[: seen.loaded] if port.stream in named]
        if anew:
            known = self._loaded
            if self._shared is not None:  # others may have written the rest since it was loaded
                named, known = {**self._shared.constants, **named}, []
            streams = {own for stream in anew for own in seen.streams(stream)}
            self._load(self._loaded_with(named, known), named, streams)
        self._arrays.inputs |= called

    @checked
    def run(
        self,
        steps: int | None = None,
        *,
        inputs: State | None = None,
        schedules: Mapping[Any, Any] | None = None,
        progress: Progress | None = None,
    ) -> SessionRun:
        """Do so many steps; by default those of one run of the program.

        `inputs`: parameters that come in with each call, or others in place of constants, by name
        or number; they stay until others are given. `schedules`: for such parameters, functions of
        the steps done before each call of the device, or lists with a value for each call. A
        constant's takes a transfer of its bytes each time: see `loading_cycles`.
        `steps` is a multiple of the program's steps in a run. Raises UsageError E3153 for any
        other number, E3156 where the state is not there, and what queues raise; after that, the
        state is that of the last whole step where the failure left one: see `steps`.
        """
        in_a_run = self.program.steps_per_run
        steps = in_a_run if steps is None else steps
        if steps < 0 or steps % in_a_run:
            raise UsageError(
                "E3153",
                f"{steps} steps are asked for; the program does {in_a_run} in a run",
                hint=f"ask for a multiple of {in_a_run}, or compile with another loop",
            )
        self._host.refuse_run()
        self._kept.require(self._engine)
        self._kept.require_feeds(self.steps)
        calls = scheduled(schedules or {}, steps // in_a_run, self.steps, in_a_run)
        first = {**self._named(inputs or {}), **self._named(calls[0] if calls else {})}
        begun, loading = self.cycles, self.loading_cycles
        if self._shared is None:
            self._take(first)
            return self._steps(calls, progress, begun, loading)
        self._shared.called_with(first)
        with self._device.running(self.program.name):
            done = self.steps
            try:
                if steps:
                    self._shared.refresh()
                self._take(first)
                return self._steps(calls, progress, begun, loading)
            finally:
                self._shared.is_lost = not self._kept.is_there
                if self.steps > done:
                    self._shared.wrote(STATE)

    def _steps(
        self,
        calls: Sequence[Mapping[Any, Any]],
        progress: Progress | None,
        begun: int,
        loading: int,
    ) -> SessionRun:
        """Run the program once for each of `calls`, which say what to take before it.

        What the first one says is there already. The call of `run` began at cycle `begun`, when
        `loading` cycles had gone into loading.
        """
        steps = len(calls) * self.program.steps_per_run
        if steps:
            require_inputs(self.program, self._arrays.inputs)
        counts = self._counts = Counts(progress=progress, limit=self._turn_limit)
        waited = self.idle_cycles
        self._clock.load(self._device.bring(self._resident) if steps else 0)
        self._calls_done = 0
        elements = {name: steps * each for name, each in self._taken.items()}
        with self._host.running(elements), computing():
            for number, given in enumerate(calls):
                if number and given:
                    self._take(self._named(given))
                self._run_once(counts)
        for path, runs in counts.runs.items():
            self._runs[path] += runs
        idle = self.idle_cycles - waited + self.loading_cycles - loading
        if not self._times.is_exact:
            charged = self._charges.counts(counts.runs or {"body": 0})
            spent = spent_of(self.costs, charged).total.cycles
            self._clock.add(begun + spent + idle - self.cycles)
        seen, outputs = self._seen, list[Any]()
        if steps:
            outputs = taken_arrays(seen.results, seen.joined(self._arrays.outputs))
        cycles = self.cycles - begun
        return SessionRun(lambda: self._profile(counts.runs, idle), steps, outputs, cycles)

    def profile(self) -> Profile:
        """Return the profile of all calls of `run` that ended well, together."""
        return self._profile(self._runs, self.idle_cycles + self.loading_cycles)

    def _profile(self, runs: Mapping[str, int], idle_cycles: int) -> Profile:
        return profile_of_run(
            self.costs,
            self._charges.counts(runs or {"body": 0}),
            self.about,
            mode=self.settings.mode,
            idle_cycles=idle_cycles,
            rates=self.rates,
            queues=self.queues(),
        )

    def queues(self) -> dict[str, dict[str, Any]]:
        """Return what each queue counted since the session began, by name, in the host's own time.

        Of infeeds: elements `taken`, `capacity`, `prefetch_depth`, whether the source is read
        `inline`, seconds that the program `waited_seconds` for it and that it took itself
        (`source_seconds`), and elements per second of these (`source_rate`, None: none yet). Of
        outfeeds: elements `given` and those that were `dropped`.
        """
        infeeds = {queue.name: queue.counted() for queue in self._host.infeeds}
        return infeeds | {queue.name: queue.counted() for queue in self._host.outfeeds}

    @checked
    def stream(self, name: str, host: int = EVERY_HOST) -> OutfeedQueue:
        """Return the queue of an outfeed, to be read from any thread; UsageError E3155.

        `host`: whose it is, where each has one of its own.
        """
        return self._host.outfeed(name, host, self.program.hosts if self._by_host else 0)

    @checked
    def arrived(self, name: str) -> list[Arrived]:
        """Return what has arrived of an outfeed and was not read yet, from all hosts together.

        Elements have a row of each replica, where there are several. Raises UsageError E3155.
        """
        if not self._by_host:
            return self.stream(name).drain()
        return together([self.stream(name, n) for n in range(max(self.program.hosts, 1))])

    @checked
    def state(self, replica: int = 0, *, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return copies of a replica's state by name, in the user's types: its first partition's.

        `names`: of the arrays that are wanted; by default all. Raises UsageError E3156 where it is
        lost, E2072 where there is no such replica, E3154 where there is no such array, StreamError
        E2061 while a run is going on.
        """
        self._host.refuse_state(self.steps)
        self._kept.require(self._engine)
        self._refresh()
        return self._participants.of_replica(self._engine.states, replica, names)

    def meet_states(self) -> None:
        """Hand others what they need of the state here, where they are asked for theirs."""
        self._host.refuse_state(self.steps)
        self._kept.require(self._engine)
        self._participants.together(self._engine.states)

    @checked
    def give_state(self, state: State) -> None:
        """Put other arrays in the place of the whole state; steps, cycles and queues go on.

        `state` is what a session begins with; see `CompiledProgram.session`. Raises UsageError
        E3154 for arrays that are missing or unknown, E3142 for those that do not fit, StreamError
        E2061 while a run is going on.
        """
        self._host.refuse_state(self.steps)
        self._kept.begin(begun_states(self.program, state, self.settings.seed, self._numbers))

    @checked
    def save_state(self, path: str | Path) -> None:
        """Write a checkpoint, in the place of an older one at once.

        Of several hosts, each writes the part of its replicas into a file beside it. Of processes
        that are no hosts, which all save at once, the first one writes what all have.
        Raises UsageError E3156 where the state is lost, or data decided how many elements the step
        that failed had taken; E3004 where it cannot be written.
        """
        self._host.refuse_state(self.steps)
        self._kept.require(self._engine)
        self._refresh()
        hosts = 1 if self.settings.identical else self.program.hosts
        if self.settings.elsewhere is not None:
            states, _ = self._participants.together(self._engine.states, whole=True)
            if self._numbers.start == 0:
                self._part(range(len(states)), states=(states, 0)).save(path)
            return
        if hosts <= 1:
            self._part(self._numbers).save(path)
            return
        each = len(self._numbers) // hosts
        parts = [self._part(range(h * each, (h + 1) * each), h) for h in range(hosts)]
        digests = [save_part(path, part, host, hosts) for host, part in enumerate(parts)]
        save_index(path, parts[0], digests, len(self._numbers))

    def save_part(self, path: str | Path, host: int) -> tuple[Checkpoint, str]:
        """Write the part of a host whose replicas are here; return it, and its digest.

        Raises what `save_state` raises.
        """
        self._host.refuse_state(self.steps)
        self._kept.require(self._engine)
        part = self._part(self._numbers, host)
        return part, save_part(path, part, host, self.program.hosts)

    def _part(
        self,
        numbers: range,
        host: int = EVERY_HOST,
        states: tuple[States, int] | None = None,
    ) -> Checkpoint:
        states = states or self._participants.together(self._engine.states)
        positions = self._kept.positions(self.steps)
        arrays = self._participants.saved(states, numbers)
        saved = Checkpoint(self.program.name, self.steps, self.cycles, positions, arrays)
        return saved if host == EVERY_HOST else saved.of_host(host)

    @checked
    def load_state(self, path: str | Path) -> None:
        """Go on from a checkpoint: state, steps, cycles, and the elements that feeds go on with.

        Raises what `load_checkpoint` raises, UsageError E3157 where it is another program's,
        StreamError E2031 where elements of a feed were taken already, E2061 while a run is going
        on.
        """
        self._host.refuse_state(self.steps)
        saved = load_checkpoint(path)
        saved.require_for(self.program)
        if self.settings.elsewhere is not None:
            saved = saved.of_host(self.settings.elsewhere.host)
        saved.require_positions(self._kept.each_step())
        # All of it or nothing: what could fail comes first.
        state = resumed_states(self.program, saved, self._numbers)
        self._host.resume(saved.positions)
        self._kept.begin(state)
        self.steps = saved.steps
        self._clock.begin_at(saved.cycles)
        if self._shared is not None:
            self._kept.require(self._engine)
            self._shared.is_lost = False
            self._shared.wrote(STATE)

    def close(self) -> None:
        """Close all queues, ending their threads; a device that others are on has room again."""
        self._host.close()
        if self._shared is not None and self._resident in self._device.beside:
            self._device.keep(self._resident, None)
            self._shared.leave()
        self._kept.lost = self._kept.lost or "the session is closed"

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refresh(self) -> None:
        """Have what other programs on the device have written."""
        if self._shared is not None and self._resident in self._device.beside:
            self._shared.refresh()

    def _run_once(self, counts: Counts) -> None:
        """Run the program once; note how many steps are done, also where it fails."""
        path = self._times.loop_path
        iterations = counts.runs[path] if path else 0
        positions = self._kept.positions_now()
        try:
            self._engine.run(counts)
        except BaseException as error:
            self._failed(error, counts.runs[path] - iterations if path else 1, positions)
            raise
        self.steps += self.program.steps_per_run
        self._clock.end_call(self.program.steps_per_run)
        self._calls_done += 1

    def _failed(self, error: BaseException, iterations: int, positions: Mapping[str, int]) -> None:
        """Note what a run that failed in an iteration, counted from 1, leaves.

        `positions` are those of the feeds when it began.
        """
        done = self._engine.steps_kept(error, iterations, self._times.loop_path)
        if done is None:
            self._kept.lose(self.steps)
            return
        self.steps += done
        if done:
            self._clock.end_call(done)
        self._kept.fell_behind(done, positions)

    def _now(self, place: int = 0) -> int:
        """Return the simulated cycle at which this iteration ends: what it gives arrives then.

        `place`: among the participants here, of the one that is asked about. Where data decides
        how long an iteration takes, it is as early as can be.
        """
        path = self._times.loop_path
        if not path:
            return self._clock.end_of(1)
        if place:  # whose runs are counted anew in each call
            return self._clock.end_of(self._engine.counts_of(place).runs[path])
        before = self.program.steps_per_run * self._calls_done
        return self._clock.end_of(self._counts.runs[path] - before)
