"""Data and programs that the trainer refuses, and what it keeps of a training that fails."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.training.trainer import Trainer
from hloipu_runtime.errors import HloipuError, StreamEndedError, StreamError, UsageError
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from tests.support.fitted_plane import GUESS, STEPS, X, Y, by_numpy, trainer, weights


def code_of(error: pytest.ExceptionInfo[HloipuError]) -> str:
    return error.value.code


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
    fed = hloipu.compile(GUESS, loop=2, feed={"data": (1,)}, role={"0": "const"}, target="tiny")
    with pytest.raises(UsageError, match="results of its last step alone") as error:
        trainer(prediction=fed)
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


def test_steps_per_execution_that_do_not_divide_get_some_that_do() -> None:
    with pytest.raises(UsageError, match="as 2, 3, 6 do"):
        trainer().fit((X, Y), 1, steps_per_execution=4)
