"""Arrays of a feed that a step hands on to an outfeed, in steps cut in every way."""

from typing import Any, Literal

import numpy as np
import pytest

import hloipu
from tests.support.fitted_plane import GUESS, STEP, X, trainer

ECHO = """HloModule echo, input_output_alias={ {0}: (0, {}, must-alias) }
ENTRY main {
  c = s32[] parameter(0)
  x = f32[2] parameter(1)
  one = s32[] constant(1)
  c2 = s32[] add(c, one)
  ROOT r = (s32[], f32[2]) tuple(c2, x)
}
"""
BESIDE_OTHERS = STEP.replace(
    "(f32[2]{0}, f32[]) tuple(new, loss)",
    "(f32[2], f32[], f32[4,2], f32[4,2]) tuple(new, loss, x, x)",
)
ONLY_RESULT = """HloModule only
ENTRY main {
  ROOT x = f32[2] parameter(0)
}
"""
ROWS = np.arange(48, dtype=np.float32).reshape(24, 2)
BATCHES = [(ROWS[n : n + 4] / 50, np.ones(4, np.float32)) for n in range(20)]
WAYS: list[dict[str, Any]] = [
    {},
    {"micro_batches": 2},
    {"replicas": 2},
    {"replicas": 2, "micro_batches": 2},
    {"stages": 2, "ipus": 2, "micro_batches": 2},
]


def handed_on(
    text: str, outfeed: str, mode: Literal["functional", "exact"], **options: Any
) -> np.ndarray[Any, Any]:
    """Return the elements of an outfeed after two runs of two steps, in their order."""
    places = {ECHO: (1,), BESIDE_OTHERS: (1, 2), ONLY_RESULT: (0,)}[text]
    starts: dict[str, list[Any]] = {
        ECHO: [np.int32(0)], BESIDE_OTHERS: [np.zeros(2, np.float32)], ONLY_RESULT: []
    }  # fmt: skip
    fed = BATCHES if text is BESIDE_OTHERS else [(row,) for row in ROWS]
    program = hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, loop=2,
        feed={"data": places}, outfeed=[outfeed], **options,
    )  # fmt: skip
    with program.session(state=starts[text], infeeds={"data": iter(fed)}, mode=mode) as session:
        session.run(4)
        drained = session.stream("out").drain()
    return np.array([np.asarray(x.element) for x in drained])


def fed_to(text: str, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the elements that four steps take, in order."""
    count = 4 * options.get("micro_batches", 1) * options.get("replicas", 1)
    return np.array([x for x, _ in BATCHES[:count]]) if text is BESIDE_OTHERS else ROWS[:count]


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize(
    ("text", "options"),
    [(ECHO, way) for way in WAYS[:4]] + [(BESIDE_OTHERS, way) for way in WAYS],
    ids=lambda x: str(x)[:40],
)
def test_elements_come_out_as_they_went_in(
    text: str, mode: Literal["functional", "exact"], options: dict[str, Any]
) -> None:
    outfeed = "out=1" if text is ECHO else "out=2"
    found = handed_on(text, outfeed, mode, **options)
    wanted = fed_to(text, options)
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_they_can_be_added_up(options: dict[str, Any]) -> None:
    found = handed_on(BESIDE_OTHERS, "out:sum=3", "functional", **options)
    wanted = fed_to(BESIDE_OTHERS, options)
    in_runs = wanted.reshape(2, -1, *wanted.shape[1:]).sum(1)
    if "replicas" in options:
        assert found.reshape(-1, 4, 2).sum(0) == pytest.approx(wanted.sum(0), rel=1e-6)
    else:
        np.testing.assert_allclose(found, in_runs, rtol=1e-6)


@pytest.mark.parametrize("options", WAYS[:4], ids=str)
def test_a_step_may_be_nothing_else(options: dict[str, Any]) -> None:
    found = handed_on(ONLY_RESULT, "out=0", "functional", **options)
    np.testing.assert_array_equal(found.reshape(-1, 2), fed_to(ONLY_RESULT, options))


def test_a_prediction_may_hand_on_what_it_was_given() -> None:
    given = GUESS.replace("(f32[4]{0}) tuple(guess)", "(f32[4,2]) tuple(x)")
    for options in ({}, {"replicas": 2}):
        made = trainer(prediction=given, **options)
        np.testing.assert_array_equal(made.predict(X[:16]), X[:16])
