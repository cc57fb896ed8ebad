"""What the trainer tells those that look on, and what they may do meanwhile."""

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu.training.record import Callback, ProgressBar, TrainingProgress, bar_text
from hloipu.training.trainer import Trainer
from hloipu_runtime.errors import UsageError
from tests.support.fitted_plane import (
    LOSS,
    ROWS,
    START,
    STEP,
    STEPS,
    X,
    Y,
    by_numpy,
    trainer,
    weights,
)


class Told(Callback):
    def __init__(self) -> None:
        self.log: list[Any] = []

    def on_train_begin(self) -> None:
        self.log.append("begin")

    def on_epoch_begin(self, epoch: int) -> None:
        self.log.append(epoch)

    def on_execution_end(self, step: int, logs: Mapping[str, float]) -> None:
        self.log.append((step, sorted(logs)))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.log.append((epoch, sorted(logs)))

    def on_train_end(self) -> None:
        self.log.append("end")


def test_callbacks_are_called_in_order() -> None:
    told = Told()
    trainer(evaluation=LOSS).fit(
        (X, Y), 1, steps_per_execution=3, validation_data=(X, Y), callbacks=(told,)
    )
    ends = [(3, ["loss"]), (6, ["loss"]), (0, ["loss", "val_loss"])]
    assert told.log == ["begin", 0, *ends, "end"]


def test_a_callback_ends_the_training() -> None:
    made = trainer()

    class Stop(Callback):
        def on_execution_end(self, step: int, logs: Mapping[str, float]) -> None:
            made.stop_training = step == 4

    history = made.fit((X, Y), 5, steps_per_execution=2, callbacks=(Stop(),))
    assert len(history.steps["loss"]) == made.steps == 4
    assert made.fit((X, Y), 1).samples == ROWS


def test_what_a_looker_raises_comes_to_the_caller() -> None:
    class Clumsy(Callback):
        def on_live(self, progress: TrainingProgress) -> None:
            raise ZeroDivisionError

    made = trainer()

    def endless() -> Iterator[Any]:
        while True:
            yield X[:4], Y[:4]

    with pytest.raises(ZeroDivisionError):
        made.fit(endless(), 1, steps_per_epoch=20000, steps_per_execution=10,
                 callbacks=(Clumsy(),))  # fmt: skip
    assert made.steps == 20000


def test_the_line_of_progress() -> None:
    progress = TrainingProgress(0, 2, 12, 24, {"loss": 0.25}, 1234.5, 1e6)
    assert bar_text(progress) == (
        "epoch 1/2 [============............] 12/24  loss 0.25  "
        "1,234 samples/s, 1,000,000 simulated"
    )
    stream = StringIO()
    bar = ProgressBar(stream)
    bar.on_live(progress)
    bar.on_epoch_end(0, {"loss": 0.5})
    line = "epoch 1/2  loss 0.5  1,234 samples/s, 1,000,000 simulated\n"
    assert stream.getvalue().endswith(f"\r\x1b[K{line}")


class AtEpochs(Callback):
    """Calls a function at the end of each epoch, and another in the end."""

    def __init__(self, at_epoch: Callable[[int], None], at_end: Callable[[], Any] = int) -> None:
        self.at_epoch = at_epoch
        self.at_end = at_end

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.at_epoch(epoch)

    def on_train_end(self) -> None:
        self.at_end()


def test_callbacks_see_and_save_the_state_of_their_moment(tmp_path: Path) -> None:
    made = trainer()
    seen: list[tuple[int, Any]] = []

    def look(epoch: int) -> None:
        seen.append((made.steps, weights(made)))
        made.save_state(tmp_path / str(epoch))

    made.fit((X, Y), 2, steps_per_execution=2, callbacks=[AtEpochs(look)])
    assert [steps for steps, _ in seen] == [STEPS, 2 * STEPS]
    for steps, w in seen:
        np.testing.assert_allclose(w, by_numpy(steps)[1], rtol=1e-5)
    first = trainer(state=None)
    first.load_state(tmp_path / "0")
    assert first.steps == STEPS
    np.testing.assert_array_equal(weights(first), seen[0][1])


def test_the_best_state_may_be_given_back_in_the_end() -> None:
    made = trainer()
    kept: list[Any] = []

    def keep(epoch: int) -> None:
        if epoch == 0:
            kept.append(made.state)

    def give_back() -> None:
        made.state = kept[0]

    made.fit((X, Y), 3, callbacks=[AtEpochs(keep, give_back)])
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)


def test_the_state_is_not_given_while_the_device_holds_it() -> None:
    made = trainer()

    def give(_: int) -> None:
        made.state = [START]

    with pytest.raises(UsageError, match="E2062"):
        made.fit((X, Y), 1, callbacks=[AtEpochs(give)])
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)
    made.state = [START]


def test_constants_are_given_and_may_change_between_executions() -> None:
    step = STEP.replace("rate = f32[] constant(0.0625)", "rate = f32[] parameter(3)")
    options: dict[str, Any] = {"target": "tiny", "cache": False, "feeds": {"data": (1, 2)}}
    made = Trainer(step, state=[START], constants={3: np.float32(0.0625)}, **options)

    def decay(_: int) -> None:
        made.constants = {3: np.float32(0)}

    made.fit((X, Y), 3, callbacks=[AtEpochs(decay)])
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)


def test_a_trainer_trains_once_at_a_time() -> None:
    made = trainer()

    def again(_: int) -> None:
        made.fit((X, Y), 1)

    with pytest.raises(UsageError, match="E2065"):
        made.fit((X, Y), 2, callbacks=[AtEpochs(again)])
    assert made.steps == STEPS
    made.fit((X, Y), 1)
    assert made.steps == 2 * STEPS
