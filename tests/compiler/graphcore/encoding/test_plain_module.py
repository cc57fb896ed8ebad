"""What texts in Graphcore's encoding compute, against the formulas of a perceptron in f64."""

import itertools

import numpy as np
import pytest

from hloipu_compiler.graphcore.encoding.plain_module import plain_module
from hloipu_compiler.graphcore.encoding.reading import flat_step
from tests.support.poplar_run import evaluated
from tests.support.poplar_small import (
    TAKEN,
    TEXT,
    WEIGHTS,
    changed,
    elements,
    read,
    trained,
)
from tests.support.poplar_spelling import Spelling, Written
from tests.support.poplar_texts import text_of
from tests.support.poplar_trained import batches, start
from tests.support.poplar_trained import trained as perceptron_trained
from tests.support.poplar_variants import VARIANTS
from tests.support.poplar_windows import BEGINNINGS, WINDOWS

FORMS = ("pipeline", "loop", "while")
REDUCTIONS = ("sum", "mean", "running_mean")


@pytest.mark.parametrize(
    ("form", "reduction", "micro_batches"),
    list(itertools.product(FORMS, REDUCTIONS, (1, 3))),
)
def test_every_form_trains_as_its_formulas_say(
    form: str, reduction: str, micro_batches: int
) -> None:
    written = Written(
        form=form, reduction=reduction, micro_batches=micro_batches, repeat=3,
        spelling=Spelling(as_json=micro_batches == 3),
    )  # fmt: skip
    state, losses = perceptron_trained(written)
    made, sent = evaluated(text_of(written), start(written), list(batches(written)))
    for mine, theirs in zip(made, state, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose([x for (x,) in sent], losses, rtol=2e-5)


@pytest.mark.parametrize("name", WINDOWS)
def test_older_accumulators_compute_turn_by_turn(name: str) -> None:
    window = WINDOWS[name]
    made, _ = evaluated(window.text, BEGINNINGS[: window.arrays], [(x,) for x in elements()])
    for mine, theirs in zip(made, window.state, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_compute_what_they_say(name: str) -> None:
    variant = VARIANTS[name]
    made, sent = evaluated(variant.text, WEIGHTS, [(x,) for x in variant.data])
    for mine, theirs in zip(made, variant.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert sent == [[x] for x in variant.sent]


def test_plain_modules_are_left_alone() -> None:
    module = read("HloModule m\n\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n}\n")
    assert plain_module(module) is module


def test_loops_within_a_stage_turn_as_often_as_they_say() -> None:
    inner = """twice {
  v = f32[2] parameter(0)
  counter = s32[] custom-call(), custom_call_target="ExecutionCounter"
  n = f32[] convert(counter)
  ns = f32[2] broadcast(n), dimensions={}
  d = f32[2] add(v, ns)
  ROOT out = (f32[2]) tuple(d)
}

"""
    call = (
        '  t = (f32[2]) call(p), to_apply=twice, backend_config="{\\"callConfig\\":{\\"type\\":'
        '\\"RepeatLoop\\",\\"repeatConfig\\":{\\"repeatCount\\":\\"4\\"}}}"\n'
        "  h = f32[2] get-tuple-element(t), index=0"
    )
    text = changed(
        ("  h = f32[2] multiply(x, w0)", "  p = f32[2] multiply(x, w0)\n" + call),
        ("forward_0 {", inner + "forward_0 {"),
    )
    _, sent = evaluated(text, WEIGHTS, [(x,) for x in elements()])
    first = elements()[0] * WEIGHTS[0] + (0 + 1 + 2 + 3)
    assert sent[0] == [float(np.sum(first * WEIGHTS[1]))]


def test_a_loop_may_hand_its_values_on_as_one_tuple() -> None:
    written = Written(form="while")
    loop = (
        'call(start), to_apply=body, backend_config="{\\"callConfig\\":{\\"type\\":'
        '\\"RepeatLoop\\",\\"repeatConfig\\":{\\"repeatCount\\":\\"8\\"}}}"'
    )
    text = changed(("while(start), condition=condition, body=body", loop), text=text_of(written))
    state, _ = perceptron_trained(written)
    made, _ = evaluated(text, start(written), list(batches(written)))
    np.testing.assert_allclose(made[0], state[0], rtol=2e-5, atol=2e-6)
    step = flat_step(read(text))
    assert step is not None
    assert step.stated.micro_batches == 4
    assert step.stated.loop == 2


def test_a_loop_of_one_value_gives_it_back() -> None:
    text = """HloModule one

body {
  a = s32[] parameter(0)
  b = s32[] constant(3)
  ROOT c = s32[] add(a, b)
}

ENTRY main {
  a = s32[] parameter(0)
  ROOT r = s32[] call(a), to_apply=body, backend_config="{\\"callConfig\\":{\\"type\\":\\"RepeatLoop\\",\\"repeatConfig\\":{\\"repeatCount\\":\\"7\\"}}}"
}
"""  # noqa: E501
    made, _ = evaluated(text, [np.asarray(2, np.int32)], [])
    assert int(made[0]) == 2 + 7 * 3


def test_an_older_accumulator_counts_its_window() -> None:
    text = """HloModule older

body {
  w = f32[2] parameter(0)
  ready = token[] after-all()
  feed = ((f32[2]), token[]) infeed(ready), infeed_config="x"
  data = (f32[2]) get-tuple-element(feed), index=0
  x = f32[2] get-tuple-element(data), index=0
  g = f32[2] multiply(x, w)
  s = f32[2] custom-call(g), custom_call_target="StatefulGradientAccumulate", backend_config="{\\"num_mini_batches\\":3}"
  n = f32[2] subtract(w, s)
  ROOT out = (f32[2]) tuple(n)
}

ENTRY main {
  w = f32[2] parameter(0)
  p = (f32[2]) call(w), to_apply=body, backend_config="{\\"callConfig\\":{\\"type\\":\\"RepeatLoop\\",\\"repeatConfig\\":{\\"repeatCount\\":\\"6\\"}}}"
  ROOT r = f32[2] get-tuple-element(p), index=0
}
"""  # noqa: E501
    data = elements()
    made, _ = evaluated(text, [WEIGHTS[0]], [(x,) for x in data])
    w = np.asarray(WEIGHTS[0], np.float64)
    for turn in range(2):
        w = w - sum(x * w for x in data[3 * turn : 3 * turn + 3])
    np.testing.assert_array_equal(made[0], w)


def test_the_text_itself_is_right() -> None:
    weights, losses = trained()
    made, sent = evaluated(TEXT, WEIGHTS, [(x,) for x in elements()])
    np.testing.assert_array_equal(made[0], weights[0])
    np.testing.assert_array_equal(made[1], weights[1])
    assert [x for (x,) in sent] == losses
    assert TAKEN in TEXT
