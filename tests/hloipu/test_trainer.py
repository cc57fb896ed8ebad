"""The trainer against the same steps in numpy; what it tells, and what it refuses."""

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.callbacks import Callback, ProgressBar, TrainingProgress, bar_text
from hloipu.trainer import Trainer
from hloipu_runtime.errors import HloipuError, StreamEndedError, StreamError, UsageError
from hloipu_runtime.sim.functional import FunctionalEngine

_FIT = """
  w = f32[2]{0} parameter(0)
  x = f32[4,2]{1,0} parameter(1)
  guess = f32[4]{0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
_LOSS = """
  y = f32[4]{0} parameter(2)
  off = f32[4]{0} subtract(guess, y)
  square = f32[4]{0} multiply(off, off)
  zero = f32[] constant(0)
  loss = f32[] reduce(square, zero), dimensions={0}, to_apply=sum
"""
_SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
STEP = f"""HloModule step, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}
{_SUM}
ENTRY main {{
{_FIT}{_LOSS}
  slope = f32[2]{{0}} dot(x, off), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  rate = f32[] constant(0.0625)
  rates = f32[2]{{0}} broadcast(rate), dimensions={{}}
  change = f32[2]{{0}} multiply(slope, rates)
  new = f32[2]{{0}} subtract(w, change)
  ROOT all = (f32[2]{{0}}, f32[]) tuple(new, loss)
}}
"""
LOSS = f"HloModule loss\n{_SUM}\nENTRY main {{\n{_FIT}{_LOSS}\n  ROOT r = (f32[]) tuple(loss)\n}}\n"
GUESS = f"HloModule guess\nENTRY main {{\n{_FIT}\n  ROOT r = (f32[4]{{0}}) tuple(guess)\n}}\n"

ROWS = 24
X = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
Y = (X @ np.array([2, -1], np.float32)).astype(np.float32)
START = np.zeros(2, np.float32)
STEPS = ROWS // 4


def trainer(**more: Any) -> Trainer:
    given: dict[str, Any] = {"state": [START], "target": "tiny", "cache": False, **more}
    return Trainer(STEP, **given)


def by_numpy(steps: int) -> tuple[list[float], Any]:
    w, losses = np.zeros(2), []
    for n in range(steps):
        at = 4 * (n % STEPS)
        x, off = X[at : at + 4], X[at : at + 4] @ w - Y[at : at + 4]
        losses.append(float(off @ off))
        w = w - 0.0625 * (x.T @ off)
    return losses, w


def weights(made: Trainer) -> Any:
    assert isinstance(made.state, Mapping)
    (array,) = made.state.values()
    return array


def code_of(error: pytest.ExceptionInfo[HloipuError]) -> str:
    return error.value.code


def test_fit_does_the_steps() -> None:
    made = trainer()
    history = made.fit((X, Y), 3, steps_per_execution=2)
    losses, w = by_numpy(3 * STEPS)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(weights(made), w, rtol=1e-5)
    means = np.reshape(losses, (3, STEPS)).mean(1)
    np.testing.assert_allclose(history.history["loss"], means, rtol=1e-4, atol=1e-6)
    assert (made.steps, history.samples) == (3 * STEPS, 3 * ROWS)
    np.testing.assert_array_equal(START, [0, 0])


def test_steps_per_execution_change_the_calls_and_nothing_else() -> None:
    calls, values, cycles = [], [], []
    for in_a_run in (1, 3):
        made = trainer()
        history = made.fit((X, Y), 2, steps_per_execution=in_a_run)
        assert made.profile is not None
        calls.append(made.profile.runs)
        values.append((history.steps["loss"], weights(made).tolist()))
        cycles.append(history.cycles)
    assert calls == [2 * STEPS, 2 * STEPS // 3]
    assert values[0] == values[1]
    assert cycles[0] > cycles[1]


def test_fit_goes_on_where_it_was() -> None:
    made = trainer()
    made.fit((X, Y), 1)
    made.fit((X, Y), 2)
    np.testing.assert_allclose(weights(made), by_numpy(3 * STEPS)[1], rtol=1e-5)


def test_elements_of_an_iterable_are_taken_as_they_are() -> None:
    made = trainer()
    elements = [(X[at : at + 4], Y[at : at + 4]) for at in range(0, ROWS, 4)]
    made.fit(iter(elements), steps_per_epoch=STEPS)
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)


def test_shuffling_takes_every_row_once_an_epoch() -> None:
    first, again, other = (trainer() for _ in range(3))
    losses = [
        made.fit((X, Y), 1, shuffle=seed).steps["loss"]
        for made, seed in ((first, 1), (again, 1), (other, 2))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_evaluation_is_a_mean_over_batches() -> None:
    made = trainer(evaluation=LOSS)
    history = made.fit((X, Y), 2, validation_data=(X, Y))
    w = weights(made).astype(np.float64)
    wanted = float(((X @ w - Y) ** 2).reshape(STEPS, 4).sum(1).mean())
    assert made.evaluate((X, Y)) == {"loss": pytest.approx(wanted, rel=1e-4, abs=1e-9)}
    assert history.history["val_loss"][-1] == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    assert len(history.history["val_loss"]) == 2


def test_prediction_gives_a_result_for_every_row() -> None:
    made = trainer(prediction=GUESS, state={0: np.array([3, 5], np.float32)})
    found = made.predict(X[:10])  # two batches and a half
    np.testing.assert_allclose(found, X[:10] @ np.array([3, 5], np.float32), rtol=1e-5, atol=1e-5)


def test_forward_steps_may_be_compiled_before() -> None:
    ready = hloipu.compile(
        GUESS, loop=2, role={"0": "const"}, feed={"data": (1,)}, outfeed=("out=0",), target="tiny"
    )
    made = trainer(prediction=ready, state=[np.array([1, 1], np.float32)])
    np.testing.assert_allclose(made.predict(X[:7]), X[:7].sum(1), rtol=1e-5, atol=1e-5)


def test_a_compiled_step_is_trained_as_it_is(tmp_path: Path) -> None:
    ready = hloipu.compile(
        STEP, loop=3, feed={"data": (1, 2)}, outfeed=("loss=1",), target="tiny", cache=False
    )
    ready.save(tmp_path / "step.ipux")
    made = Trainer(hloipu.load(tmp_path / "step.ipux"), state=[START])
    made.fit((X, Y), 1)
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)
    with pytest.raises(UsageError, match="does 3 in a run") as error:
        made.fit((X, Y), 1, steps_per_execution=2)
    assert code_of(error) == "E3170"


def test_metrics_that_the_device_adds_up_come_once_an_execution() -> None:
    ready = hloipu.compile(
        STEP, loop=3, feed={"data": (1, 2)}, outfeed=("loss=mean:1",), target="tiny", cache=False
    )
    history = Trainer(ready, state=[START]).fit((X, Y), 2, steps_per_execution=3)
    losses = by_numpy(2 * STEPS)[0]
    means = np.reshape(losses, (4, 3)).mean(1)
    np.testing.assert_allclose(history.steps["loss"], means, rtol=1e-4, atol=1e-6)
    epochs = np.reshape(losses, (2, STEPS)).mean(1)
    np.testing.assert_allclose(history.history["loss"], epochs, rtol=1e-4, atol=1e-6)
    assert history.samples == 2 * ROWS


def test_state_comes_back_from_a_file(tmp_path: Path) -> None:
    made = trainer()
    made.fit((X, Y), 1)
    made.save_state(tmp_path / "state")
    other = trainer(state=None)
    other.load_state(tmp_path / "state")
    other.fit((X, Y), 1)
    made.fit((X, Y), 1)
    assert weights(made).tolist() == weights(other).tolist()
    assert other.steps == 2 * STEPS


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


def test_a_dataset_that_ends_leaves_the_last_whole_step() -> None:
    made = trainer()
    elements = iter([(X[:4], Y[:4]), (X[4:8], Y[4:8])])
    with pytest.raises(StreamEndedError):
        made.fit(elements, steps_per_epoch=6, steps_per_execution=3)
    np.testing.assert_allclose(weights(made), by_numpy(2)[1], rtol=1e-5)
    assert made.steps == 2


def test_datasets_that_do_not_fit() -> None:
    made = trainer()
    with pytest.raises(UsageError, match="not known how many") as error:
        made.fit(iter([(X[:4], Y[:4])]))
    assert code_of(error) == "E3170"
    with pytest.raises(UsageError, match="4 in an execution") as error:
        made.fit((X, Y), steps_per_execution=4)
    assert code_of(error) == "E3170"
    with pytest.raises(UsageError, match="good for 0 steps") as error:
        made.fit((X[:3], Y[:3]))
    assert code_of(error) == "E3170"
    with pytest.raises(StreamError, match="element 0"):
        made.fit([(X[:3], Y[:3])])
    with pytest.raises(UsageError) as error:
        trainer(feeds={"a": (1,), "b": (2,)}).fit((X, Y))
    assert code_of(error) == "E3170"


def test_several_feeds_have_a_dataset_each() -> None:
    made = trainer(feeds={"images": (1,), "labels": (2,)}, metrics={"cost": 1})
    history = made.fit({"images": X, "labels": Y})
    np.testing.assert_allclose(history.steps["cost"], by_numpy(STEPS)[0], rtol=1e-4)


def test_programs_that_do_not_fit() -> None:
    with pytest.raises(UsageError) as error:
        trainer().predict(X)
    assert code_of(error) == "E3173"
    other = GUESS.replace("w = f32[2]{0} parameter(0)", "x = f32[4,2]{1,0} parameter(0)").replace(
        "x = f32[4,2]{1,0} parameter(1)", "w = f32[2]{0} parameter(1)"
    )
    with_other_name = other.replace(" w", " v")
    with pytest.raises(UsageError, match="neither by name nor by order") as error:
        trainer(prediction=with_other_name)
    assert code_of(error) == "E3171"
    with pytest.raises(UsageError) as error:
        Trainer(hloipu.compile(GUESS, target="tiny"))
    assert code_of(error) == "E3172"
    with pytest.raises(UsageError) as error:
        trainer(metrics=("loss", "accuracy"))
    assert code_of(error) == "E3151"
    with pytest.raises(UsageError, match="sets 'loop' itself") as error:
        trainer(loop=3)
    assert code_of(error) == "E3151"
    with pytest.raises(HloipuError, match="targt"):
        trainer(targt="tiny")
    with pytest.raises(UsageError, match="no state") as error:
        trainer(state=None, prediction=GUESS).predict(X)
    assert code_of(error) == "E3154"


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


def test_a_failure_without_a_whole_state_leaves_state_and_steps_that_belong_together() -> None:
    made = trainer()
    made.fit((X, Y), 1)
    before = weights(made).copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionalEngine, "kept_moment", "lost", raising=False)
        patch.setattr(FunctionalEngine, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.fit((X, Y), 1)
    assert made.steps == STEPS
    np.testing.assert_array_equal(weights(made), before)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_validation_needs_a_step_before_anything_is_trained() -> None:
    made = trainer()
    with pytest.raises(UsageError, match="E3173"):
        made.fit((X, Y), 1, validation_data=(X, Y))
    assert made.steps == 0


def test_constants_are_given_and_may_change_between_executions() -> None:
    step = STEP.replace("rate = f32[] constant(0.0625)", "rate = f32[] parameter(3)")
    options: dict[str, Any] = {"target": "tiny", "cache": False, "feeds": {"data": (1, 2)}}
    made = Trainer(step, state=[START], constants={3: np.float32(0.0625)}, **options)

    def decay(_: int) -> None:
        made.constants = {3: np.float32(0)}

    made.fit((X, Y), 3, callbacks=[AtEpochs(decay)])
    np.testing.assert_allclose(weights(made), by_numpy(STEPS)[1], rtol=1e-5)


def test_steps_per_execution_that_do_not_divide_get_some_that_do() -> None:
    with pytest.raises(UsageError, match="as 2, 3, 6 do"):
        trainer().fit((X, Y), 1, steps_per_execution=4)


def test_a_trainer_trains_once_at_a_time() -> None:
    made = trainer()

    def again(_: int) -> None:
        made.fit((X, Y), 1)

    with pytest.raises(UsageError, match="E2065"):
        made.fit((X, Y), 2, callbacks=[AtEpochs(again)])
    assert made.steps == STEPS
    made.fit((X, Y), 1)
    assert made.steps == 2 * STEPS
