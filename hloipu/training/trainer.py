"""A trainer around a training step: fit, evaluate, predict, with the loop on the device."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from hloipu.definitions import without_definitions
from hloipu.options.keywords import CompileOptions
from hloipu.options.resolve import resolve
from hloipu.showing import shown, somebody_looks
from hloipu.training.datasets import (
    again_and_again,
    batch_size,
    padded_rows,
    sources_for,
    steps_of_pass,
)
from hloipu.training.programs import (
    Feeds,
    Metrics,
    StepInput,
    StepPrograms,
    forward_programs,
    training_programs,
)
from hloipu.training.record import Callback, History, ProgressBar, Recorder, live, mean_of
from hloipu_compiler.plan.roles import CALL
from hloipu_runtime.arguments import DEFAULT_TIMEOUT_SECONDS, Number, Positive, Seed, State, checked
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UsageError
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.checkpoint import Checkpoint
from hloipu_runtime.session.host_parts import load_checkpoint
from hloipu_runtime.session.inputs import scheduled
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.element import LeafSpec

if TYPE_CHECKING:
    from hloipu.hosts import HostsSession
import threading
from typing import TYPE_CHECKING

from hloipu_runtime.errors import HostError

if TYPE_CHECKING:
    from hloipu.hosts import HostsSession


_OWN_OPTIONS = {"loop": "steps_per_execution= of fit", "feed": "feeds=", "outfeed": "metrics="}
_MOST_DIVISORS_TRIED = 10_000


def require_options(options: Mapping[str, Any]) -> None:
    """Raise what `hloipu.compile` raises for options, E3151 for those that a trainer sets."""
    resolve("compile", without_definitions(options))
    for name, instead in _OWN_OPTIONS.items():
        if name in options:
            raise UsageError(
                "E3151", f"a trainer sets {name!r} itself", hint=f"use {instead} instead"
            )


def required(programs: StepPrograms | None, step_name: str) -> StepPrograms:
    """Return a step that is there; raise UsageError E3173 where it is not."""
    if programs is None:
        raise UsageError(
            "E3173",
            f"the trainer has no {step_name} step",
            hint=f"give it one: Trainer(…, {step_name}=HLO of a function of weights and data)",
        )
    return programs


def require_divides(epochs: int, steps_per_epoch: int, in_a_run: int) -> None:
    """Raise UsageError E3170 unless steps per execution divide those of an epoch."""
    if min(epochs, steps_per_epoch, in_a_run) >= 1 and not steps_per_epoch % in_a_run:
        return
    divisors = [
        n
        for n in range(1, min(steps_per_epoch, _MOST_DIVISORS_TRIED) + 1)
        if not steps_per_epoch % n
    ]
    near = ", ".join(map(str, sorted(nsmallest(3, divisors, key=lambda n: abs(n - in_a_run)))))
    raise UsageError(
        "E3170",
        f"{epochs} epochs of {steps_per_epoch} steps, {in_a_run} in an execution",
        hint="give counts of at least 1, and steps per execution that divide those of an epoch, "
        f"as {near or 1} do",
    )


class Trainer:
    """Trains a step on a simulated device: state stays there, queues feed it and take metrics.

    `profile` is what the runs of the last call cost.
    """

    @checked
    def __init__(
        self,
        step: StepInput,
        *,
        state: State | None = None,
        constants: State = (),
        feeds: Feeds | None = None,
        metrics: Metrics | None = None,
        schedules: Mapping[Any, Any] | None = None,
        evaluation: StepInput | None = None,
        prediction: StepInput | None = None,
        mode: str = "functional",
        seed: Seed = 0,
        timeout: Positive = DEFAULT_TIMEOUT_SECONDS,
        max_iterations: Number | None = None,
        fast: bool | None = None,
        scheduler: str | None = None,
        processes: Number | None = None,
        **options: Unpack[CompileOptions],
    ) -> None:
        """Take a training step: HLO text, a path, an open file, or a program compiled with queues.

        Text in Graphcore's encoding says itself what is fed, what it gives out and how it is cut.
        `state`: arrays by name or parameter number, or a list in the order of the parameters;
        `load_state` may give it instead. `constants`: what is neither state nor fed, by parameter
        number; the attribute may be set anew, for the executions that follow. `feeds`: name of a
        queue -> parameters that it feeds; by default all that are no state, from one queue.
        `metrics`: names of the results besides the state, in order, or name -> number of the
        result. `schedules`: parameters, by name or number, that differ from execution to
        execution, such as a learning rate: each a function of the steps done before, or a list with
        a value for each execution of a `fit`. `evaluation` and `prediction` are steps that take
        weights and data, weights named or ordered as in the training step. `mode` to
        `fast` are those of `CompiledProgram.session`, `options` those of `hloipu.compile`.
        `scheduler` and `processes` have several processes train (`hloipu.hosts.open_session`):
        those of this machine unless it is the address of a Dask scheduler; forward steps run here.
        Raises what `hloipu.parse` raises, and UsageError: E3150 to E3152 where roles are not clear
        or names wrong, E3171 where a forward step does not match, E3172 for a program without
        queues.
        """
        require_options(options)
        self.constants = constants
        self.schedules: dict[Any, Any] = dict(schedules or {})
        self.profile: Profile | None = None
        self._host = HostState(state)
        self.stop_training: bool = False
        """Set by a callback: `fit` ends after the execution that is going on."""
        self._running: dict[str, Any] = {
            "mode": mode,
            "seed": seed,
            "timeout": timeout,
            "max_iterations": max_iterations,
            "fast": fast,
        }
        with_roles: dict[str, Any] = dict(options)
        if self.schedules:
            called = dict.fromkeys(map(str, self.schedules), CALL)
            with_roles["role"] = called | dict(with_roles.get("role", ()))
        self._apart: dict[str, Any] = {}
        if scheduler is not None or processes is not None:
            self._apart = {"scheduler": scheduler or "local", "processes": processes}
        self._training = training_programs(step, feeds, metrics, with_roles)
        training_state = self._training.state
        self._evaluation = self._prediction = None
        if evaluation is not None:
            names = metrics if not isinstance(metrics, Mapping) else None
            self._evaluation = forward_programs(evaluation, training_state, names, options)
        if prediction is not None:
            self._prediction = forward_programs(prediction, training_state, None, options)

    @property
    def state(self) -> State | None:
        """The host's copy of the state by name, as it was given or after the last execution.

        A callback that asks for it has it brought from the device; `on_live`, during an execution,
        gets the last one that was. It cannot be set while `fit` trains: UsageError E2062.
        """
        return self._host.arrays()

    @state.setter
    @checked
    def state(self, state: State | None) -> None:
        self._host.give(state)

    @property
    def steps(self) -> int:
        """Training steps done."""
        return self._host.steps

    @checked
    def fit(
        self,
        dataset: Any,
        epochs: int = 1,
        *,
        steps_per_epoch: int | None = None,
        steps_per_execution: int | None = None,
        shuffle: Number | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> History:
        """Train; return the metrics and rates.

        `dataset`: arrays whose rows are samples or whole elements, an iterable, a function of the
        element's number, or a source; for several feeds, such by name. It begins anew where an
        epoch needs more than it has. `steps_per_execution` steps are done for each call of the
        device by the host, by default those of an epoch. `shuffle` is a seed. `progress` shows a
        line on a terminal or in a notebook. Of a step that is cut (`micro_batches`, `replicas`)
        one step is one update and takes an element for each micro-batch of each replica. Raises
        UsageError E3170 where numbers do not fit each other, E3173 for validation without an
        evaluation step, E2065 while the trainer trains already, and what `Session.run` raises; the
        state is then that of the last whole step.
        """
        if validation_data is not None:
            required(self._evaluation, "evaluation")
        sources = sources_for(dataset, self._training.feeds, shuffle)
        elements = self._training.elements_per_step(steps_per_execution or steps_per_epoch)
        steps_per_epoch = steps_of_pass(sources, steps_per_epoch, elements)
        in_a_run = steps_per_epoch if steps_per_execution is None else steps_per_execution
        require_divides(epochs, steps_per_epoch, in_a_run)
        executions = epochs * steps_per_epoch // in_a_run
        calls = scheduled(self.schedules, executions, self.steps, in_a_run)
        with shown(wanted=progress):
            program = self._training.program(in_a_run)
        infeeds = {name: again_and_again(source) for name, source in sources.items()}
        observers = [*callbacks, *([ProgressBar()] if progress and somebody_looks() else [])]
        state, constants = self.state, self.constants
        with self._session(program, state, constants, infeeds) as session:
            samples = max(map(batch_size, self._training.feeds.values()), default=1)
            recorder = Recorder(session, elements * samples, epochs, steps_per_epoch)
            self.stop_training = False
            self._loaded = constants
            self._calls = iter(calls)
            self._host.begin(session)
            try:
                with live(recorder, observers):
                    for callback in observers:
                        callback.on_train_begin()
                    for _ in range(epochs):
                        self._epoch(session, recorder, in_a_run, validation_data, observers)
                        if self.stop_training:
                            break
            finally:
                self._host.end(session)
            self.profile = session.profile()
        for callback in observers:
            callback.on_train_end()
        return recorder.finish(session.steps)

    def _session(
        self, program: CompiledProgram, state: Any, constants: Any, infeeds: Mapping[str, Any]
    ) -> "Session | HostsSession":
        session_options = {
            "state": state,
            "constants": constants,
            "infeeds": infeeds,
            **self._running,
        }
        if not self._apart:
            return program.session(**session_options)
        from hloipu.hosts import open_session  # few trainings have several processes

        return open_session(program, **self._apart, **session_options)

    @checked
    def evaluate(self, dataset: Any, *, steps: int | None = None) -> dict[str, float]:
        """Return the mean of each metric over a dataset, or over its first `steps` elements.

        Rows that do not fill a last batch are left out. Raises UsageError E3173 without an
        evaluation step, and what `fit` raises.
        """
        programs = required(self._evaluation, "evaluation")
        elements_by_metric = self._forward(programs, dataset, steps)
        return {
            name: float(np.mean([mean_of(element, name) for element in elements]))
            for name, elements in elements_by_metric.items()
        }

    @checked
    def predict(self, dataset: Any, *, steps: int | None = None) -> Any:
        """Return the results of the prediction step, one array or a tuple of them.

        For rows of arrays they are put together, one for each row; for other datasets their first
        axis is that of the elements. Raises UsageError E3173 without a prediction step, and what
        `fit` raises.
        """
        programs = required(self._prediction, "prediction")
        rows: int | None = None
        if len(programs.feeds) == 1:
            (spec,) = programs.feeds.values()
            dataset, rows = padded_rows(dataset, spec)
        columns = self._forward(programs, dataset, steps).values()
        join = np.stack if rows is None else np.concatenate
        results = tuple(join(column)[:rows] for column in columns)
        return results[0] if len(results) == 1 else results

    @checked
    def save_state(self, path: str | Path) -> None:
        """Write the state to a file that `load_state` reads; sessions take `state` itself."""
        state = self._state_by_name()
        Checkpoint("training", self.steps, 0, {}, state).save(path)

    @checked
    def load_state(self, path: str | Path) -> None:
        """Load the state from a file.

        Raises what `load_checkpoint` raises, UsageError E3157 where it is not that of the step.
        """
        checkpoint = load_checkpoint(path)
        checkpoint.require_arrays(
            {port.name: LeafSpec(*port.kind) for port in self._training.state}
        )
        # Copies: those of the checkpoint are views of the file.
        self._host.give(
            {name: np.array(array) for name, array in checkpoint.arrays.items()}, checkpoint.steps
        )

    def _epoch(
        self,
        session: "Session | HostsSession",
        recorder: Recorder,
        in_a_run: int,
        validation_data: Any,
        callbacks: Sequence[Callback],
    ) -> None:
        total, done = recorder.steps_per_epoch, 0
        for callback in callbacks:
            callback.on_epoch_begin(recorder.epoch)
        while done < total and not self.stop_training:
            mark = recorder.mark()
            if self.constants is not self._loaded:
                self._loaded = self.constants
                session.load_constants(self._loaded)
            self._host.run_begins()
            with recorder.timing():
                session.run(in_a_run, inputs=next(self._calls))
            self._host.run_ended(session)
            recorder.collect()
            done += in_a_run
            for callback in callbacks:
                callback.on_execution_end(done, recorder.means_since(mark))
        validation: dict[str, float] = {}
        if validation_data is not None:
            validation = self.evaluate(validation_data)
        epoch = recorder.epoch
        logs = recorder.end_epoch(validation)
        for callback in callbacks:
            callback.on_epoch_end(epoch, logs)

    def _forward(
        self, programs: StepPrograms, dataset: Any, steps: int | None
    ) -> dict[str, list[Any]]:
        """Return what each outfeed of a forward step gives, over a dataset."""
        sources = sources_for(dataset, programs.feeds)
        count = steps_of_pass(sources, steps)
        program = programs.program(count)
        state = self._state_by_name()
        constants = {number: state[name] for number, name in programs.weights.items()}
        with program.session(constants=constants, infeeds=sources, **self._running) as session:
            session.run(count)
            self.profile = session.profile()
            return {
                name: [arrived.element for arrived in session.arrived(name)]
                for name in programs.metrics
            }

    def _state_by_name(self) -> dict[str, Any]:
        state = self.state
        if state is None:
            raise UsageError(
                "E3154", "the trainer has no state", hint="give state=, or load_state first"
            )
        training_state = self._training.state
        if not isinstance(state, Mapping):
            return {
                kept_array.name: array
                for kept_array, array in zip(training_state, state, strict=False)
            }
        numbers = {kept_array.number: kept_array.name for kept_array in training_state}
        return {numbers.get(key, str(key)): array for key, array in state.items()}


class HostState:
    """State and the steps that it has seen; while a training goes on, those of its session."""

    def __init__(self, arrays: State | None) -> None:
        self.steps: int = 0
        """Steps done, those of the training that goes on included."""
        self._arrays = arrays
        self._steps_of_arrays = 0
        self._session: Session | HostsSession | None = None
        self._steps_before = 0
        self._is_newer = False
        """Whether the device has done steps since the copy, and does none now."""
        self._lock = threading.Lock()

    def arrays(self) -> State | None:
        """Return the copy; the device's newest whole state, unless a run is going on now."""
        with self._lock:
            if self._session is not None and self._is_newer:
                self._take(self._session)
            return self._arrays

    def give(self, arrays: State | None, steps: int | None = None) -> None:
        """Put other arrays in its place; UsageError E2062 while the device holds the state."""
        if self._session is not None:
            raise UsageError(
                "E2062",
                "the state is given while a training goes on, whose device holds it",
                hint="set stop_training, and give the state in on_train_end or after fit",
            )
        self._arrays = arrays
        self.steps = self._steps_of_arrays = self.steps if steps is None else steps

    def begin(self, session: "Session | HostsSession") -> None:
        """Count from here what this session trains; UsageError E2065 while another one does."""
        if self._session is not None:
            raise UsageError(
                "E2065",
                "fit is called while the trainer trains, by a callback or another thread",
                hint="call it when the other fit has ended, or use a trainer of its own",
            )
        self._session, self._steps_before = session, self.steps
        self._steps_of_arrays = self.steps

    def run_begins(self) -> None:
        """Leave the state to the device."""
        with self._lock:
            self._is_newer = False

    def run_ended(self, session: "Session | HostsSession") -> None:
        """Count the steps; the copy is made when it is asked for."""
        self.steps = self._steps_before + session.steps
        self._is_newer = True

    def end(self, session: "Session | HostsSession") -> None:
        """Take the last copy; where a failure left no state, the previous one stays."""
        with self._lock:
            try:
                self._take(session)
            except (UsageError, HostError):
                self.steps = self._steps_of_arrays
            self._session = None

    def _take(self, session: "Session | HostsSession") -> None:
        self._arrays = session.state()
        self.steps = self._steps_of_arrays = self._steps_before + session.steps
        self._is_newer = False
