"""Training callbacks, and the progress line on a terminal."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from hloipu_runtime.arguments import checked

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
