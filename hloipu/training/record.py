"""Training records (metrics of every step, means of every epoch, rates), and callbacks on them."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from hloipu.step_elements import elements_per_step
from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import UsageError
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.structure import flatten

if TYPE_CHECKING:
    from hloipu.hosts import HostsSession

_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training."""

    epoch: int
    """Counted from 0."""
    epochs: int
    step: int
    """Steps done of the epoch."""
    steps_per_epoch: int
    metrics: Mapping[str, float]
    """The latest of each."""
    samples_per_second: float
    """Of this host."""
    simulated_samples_per_second: float
    """Of the modelled machine."""


class Callback:
    """Does nothing at each moment of a training; override what is of interest.

    `logs` are metrics by name: of an execution, the means over its steps; of an epoch, those over
    the epoch, and of the validation as `val_NAME`.
    """

    def on_train_begin(self) -> None:
        """Is called before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Is called before each epoch; they are counted from 0."""

    def on_execution_end(self, step: int, logs: Mapping[str, float]) -> None:
        """Is called whenever the host has the device again; `step` steps of the epoch are done."""

    def on_live(self, progress: TrainingProgress) -> None:
        """Is called a few times a second on another thread, while the device runs."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Is called after each epoch and its validation."""

    def on_train_end(self) -> None:
        """Is called in the end, unless the training failed; the trainer's state may be set then."""


class ProgressBar(Callback):
    """Writes a line and rewrites it, and leaves one line for each epoch."""

    @checked
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream: TextIO = sys.stderr if stream is None else stream
        self._last: TrainingProgress | None = None

    def on_live(self, progress: TrainingProgress) -> None:
        """Rewrite the line."""
        self._last = progress
        self._write(f"\r\x1b[K{bar_text(progress)}")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Leave the line of the epoch."""
        total = f"/{self._last.epochs}" if self._last else ""
        rates = f"  {_rates(self._last)}" if self._last else ""
        self._write(f"\r\x1b[Kepoch {epoch + 1}{total}  {_shown(logs)}{rates}\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def bar_text(progress: TrainingProgress) -> str:
    """Return one line that says where a training is."""
    done = _BAR_WIDTH * progress.step // max(1, progress.steps_per_epoch)
    bar = "=" * done + "." * (_BAR_WIDTH - done)
    return (
        f"epoch {progress.epoch + 1}/{progress.epochs} [{bar}] "
        f"{progress.step}/{progress.steps_per_epoch}  {_shown(progress.metrics)}  "
        f"{_rates(progress)}"
    )


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _rates(progress: TrainingProgress) -> str:
    return (
        f"{progress.samples_per_second:,.0f} samples/s, "
        f"{progress.simulated_samples_per_second:,.0f} simulated"
    )


LIVE_SECONDS = 0.1
"""Between two looks at a training that is going on."""


@dataclass
class History:
    """Metrics and rates of a training; non-scalar metrics count by the mean of their elements."""

    history: dict[str, list[float]] = field(default_factory=dict)
    """By metric, its mean over each epoch; of the validation as `val_NAME`."""
    steps: dict[str, list[float]] = field(default_factory=dict)
    """By metric, its value at each step, the mean of its micro-batches and replicas; of those that
    the device adds up, at each execution."""
    samples: int = 0
    """That the steps took."""
    seconds: float = 0.0
    """Of this host, without the validations."""
    cycles: int = 0
    """Of the modelled machine."""
    simulated_seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second of this host."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def simulated_samples_per_second(self) -> float:
        """Samples per second of the modelled machine."""
        return self.samples / self.simulated_seconds if self.simulated_seconds else 0.0


class Recorder:
    """Takes metrics out of a session's queues, from whichever thread asks, and keeps the time."""

    def __init__(
        self, session: "Session | HostsSession", samples_per_step: int, epochs: int, steps: int
    ) -> None:
        self.history: History = History(
            {}, {queue.name: [] for queue in session.program.queues if not queue.to_device}
        )
        self.epoch: int = 0
        self._epochs = epochs
        self.steps_per_epoch = steps
        self._session = session
        self._per_step = elements_per_step(session.program)
        self._waiting: dict[str, list[float]] = {queue: [] for queue in self.history.steps}
        """Elements of a step that is not through with all its micro-batches."""
        self._samples_per_step = samples_per_step
        self._lock = threading.Lock()
        self._cycles_before = session.cycles
        self._last_cycle = self._cycles_before
        self._began: float | None = None
        self._seconds = 0.0
        self._epoch_began = 0
        self._epoch_mark = self.mark()

    @property
    def step(self) -> int:
        """Steps done, as far as metrics tell while a run goes on."""
        return max(self._session.steps, *map(len, self.history.steps.values()), 0)

    def mark(self) -> dict[str, int]:
        """Return how many elements of each metric are there."""
        return {name: len(values) for name, values in self.history.steps.items()}

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count the time of the block."""
        self._began = monotonic()
        try:
            yield
        finally:
            self._seconds += monotonic() - self._began
            self._began = None

    def collect(self) -> None:
        """Collect what has arrived."""
        with self._lock:
            for name, values in self.history.steps.items():
                waiting = self._waiting[name]
                for arrived in self._session.arrived(name):
                    waiting.append(mean_of(arrived.element, name))
                    if len(waiting) == self._per_step.get(name, 1):
                        values.append(float(np.mean(waiting)))
                        waiting.clear()
                    self._last_cycle = max(self._last_cycle, arrived.cycle or 0)

    def means_since(self, mark: Mapping[str, int]) -> dict[str, float]:
        """Return the mean of each metric over the elements that came after a mark."""
        return {
            name: float(np.mean(values[mark[name] :])) if len(values) > mark[name] else float("nan")
            for name, values in self.history.steps.items()
        }

    def end_epoch(self, validation: Mapping[str, float]) -> dict[str, float]:
        """Note an epoch; return its means and those of its validation."""
        logs = self.means_since(self._epoch_mark)
        logs |= {f"val_{name}": value for name, value in validation.items()}
        for name, value in logs.items():
            self.history.history.setdefault(name, []).append(value)
        self._epoch_began, self._epoch_mark = self.step, self.mark()
        self.epoch += 1
        return logs

    def progress(self) -> TrainingProgress:
        """Return where the training is."""
        began = self._began
        seconds = self._seconds + (monotonic() - began if began is not None else 0.0)
        samples, done = self.step * self._samples_per_step, self._last_cycle - self._cycles_before
        clock_hz = self._session.costs.machine.chip.clock_hz
        latest = {name: values[-1] for name, values in self.history.steps.items() if values}
        return TrainingProgress(
            self.epoch,
            self._epochs,
            self.step - self._epoch_began,
            self.steps_per_epoch,
            latest,
            samples / seconds if seconds else 0.0,
            samples * clock_hz / done if done else 0.0,
        )

    def finish(self, steps: int) -> History:
        """Return the history of `steps` steps."""
        history = self.history
        history.samples = steps * self._samples_per_step
        history.seconds = self._seconds
        history.cycles = self._session.cycles - self._cycles_before
        history.simulated_seconds = float(
            history.cycles / self._session.costs.machine.chip.clock_hz
        )
        return history


def mean_of(element: Any, metric: str) -> float:
    """Return the mean over all numbers of an outfeed's element, as f64 adds them up.

    A narrow type's own sum stops growing (bf16 at 256 ones) or wraps around. Raises UsageError
    E3151 for complex numbers, which a metric is not.
    """
    parts = [np.asarray(part) for part in flatten(element)[0]]
    if any(np.iscomplexobj(part) for part in parts):
        raise UsageError(
            "E3151",
            f"metric {metric!r} is complex",
            hint="return its size, or its real and imaginary parts, from the step",
        )
    return float(np.mean(np.concatenate([part.astype(np.float64).ravel() for part in parts])))


@contextmanager
def live(recorder: Recorder, callbacks: Sequence[Callback]) -> Iterator[None]:
    """Call callbacks that look on from a thread, while the block runs.

    What such a callback raises ends its thread and is raised at the end of the block.
    """
    lookers = [
        callback.on_live for callback in callbacks if type(callback).on_live is not Callback.on_live
    ]
    if not lookers:
        yield
        return
    ended = threading.Event()
    with ThreadPoolExecutor(1, "hloipu-training") as pool:
        future = pool.submit(_look, recorder, lookers, ended)
        try:
            yield
        finally:
            ended.set()
        future.result()


def _look(
    recorder: Recorder,
    lookers: Sequence[Callable[[TrainingProgress], None]],
    ended: threading.Event,
) -> None:
    last = -1
    while not ended.wait(LIVE_SECONDS):
        recorder.collect()
        if recorder.step != last:
            last = recorder.step
            for look in lookers:
                look(recorder.progress())
