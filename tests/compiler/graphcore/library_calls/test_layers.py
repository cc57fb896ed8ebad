"""Norms, layers over time and random numbers, against formulas in f64 and their differences."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from tests.support.popops_call import called, drawn, evaluated, text_of_call

Full = NDArray[Any]
X, SCALE, OFFSET, DY = drawn(2, 2, 2, 4), drawn(4), drawn(4, seed=1), drawn(2, 2, 2, 4, seed=1)
GROUPS = 2


def differences(function: Callable[..., float], given: Sequence[Full], number: int) -> Full:
    """Return the gradient of a number by central differences."""
    made = np.zeros_like(given[number])
    for place in np.ndindex(*made.shape):
        for sign in (1, -1):
            moved = [x.copy() for x in given]
            moved[number][place] += sign * 1e-5
            made[place] += sign * function(*moved) / 2e-5
    return made


def _grouped(x: Full, strided: int) -> Full:
    x = np.moveaxis(x, 3, 1).reshape(2, 4, 4)
    return x.reshape(2, 2, GROUPS, 4).swapaxes(1, 2) if strided else x.reshape(2, GROUPS, 2, 4)


def _norm(x: Full, scale: Full, offset: Full, strided: int) -> tuple[Full, Full, Full]:
    taken = _grouped(x, strided)
    mean, variance = taken.mean((2, 3), keepdims=True), taken.var((2, 3), keepdims=True)
    white = (taken - mean) / np.sqrt(variance + 1e-3)
    white = white.swapaxes(1, 2) if strided else white
    made = np.moveaxis(white.reshape(2, 4, 2, 2), 1, 3) * scale + offset
    return made, mean.ravel(), 1 / np.sqrt(variance.ravel() + 1e-3)


@pytest.mark.parametrize("strided", [0, 1])
def test_norms_over_groups(strided: int) -> None:
    said = {"num_groups": GROUPS, "epsilon": 1e-3, "feature_index": 3,
            "strided_channel_grouping": strided}  # fmt: skip
    full = [x.astype(np.float64) for x in (X, SCALE, OFFSET)]
    wanted = _norm(full[0], full[1], full[2], strided)
    line = ", ".join(f"{key}={value}" for key, value in said.items())
    made = called("GroupNormTraining", [X, SCALE, OFFSET], "(f32[2,2,2,4], f32[4], f32[4])", {},
                  line)  # fmt: skip
    for mine, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-4, 1e-5)
    statistics = called("GroupNormStatistics", [X], "(f32[4], f32[4])", said)
    np.testing.assert_allclose(statistics, wanted[1:], 1e-4, 1e-5)
    (again,) = called("GroupNormInference", [X, SCALE, OFFSET, *statistics], "f32[2,2,2,4]", said)
    np.testing.assert_allclose(again, wanted[0], 1e-4, 1e-5)
    back = called("GroupNormGrad", [X, SCALE, *statistics, DY], "(f32[2,2,2,4], f32[4], f32[4])",
                  said)  # fmt: skip
    for number in range(3):
        gradient = differences(
            lambda x, a, b: float((_norm(x, a, b, strided)[0] * DY).sum()), full, number
        )
        np.testing.assert_allclose(back[number], gradient, 1e-3, 1e-4)


def test_statistics_of_a_batch() -> None:
    made = called(
        "BatchNormStatistics", [X], "(f32[4], f32[4])", {"epsilon": 0, "feature_index": 3}
    )
    np.testing.assert_allclose(made, [X.mean((0, 1, 2)), X.var((0, 1, 2))], 1e-5)


STEPS, BATCH, INPUTS, UNITS = 3, 2, 3, 2
SEQUENCE, STATE, CELL = (
    drawn(STEPS, BATCH, INPUTS),
    drawn(BATCH, UNITS),
    drawn(BATCH, UNITS, seed=1),
)
KERNEL, BIAS = drawn(INPUTS + UNITS, 4 * UNITS), drawn(4, UNITS)
LAYER = {"num_channels": UNITS, "is_training": True, "partials_dtype": "DT_FLOAT",
         "activation": "tanh", "recurrent_activation": "sigmoid", "options": "{}"}  # fmt: skip


def _lstm(x: Full, h: Full, c: Full, kernel: Full, bias: Full) -> tuple[Full, Full]:
    outputs = []
    for row in x:
        gates = np.concatenate([row, h], 1) @ kernel + bias.ravel()
        f, i, g, o = np.split(gates, 4, 1)
        c = expit(f) * c + expit(i) * np.tanh(g)
        h = expit(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs), c


def test_lstm_and_its_gradients() -> None:
    given = [SEQUENCE, STATE, CELL, KERNEL, BIAS]
    result = f"(f32[{STEPS},{BATCH},{UNITS}], f32[{BATCH},{UNITS}], f32[{STEPS},6,{BATCH},{UNITS}])"
    outputs, cell, kept = called("LstmLayerFwd", given, result, LAYER)
    full = [x.astype(np.float64) for x in given]
    for mine, theirs in zip((outputs, cell), _lstm(*full), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-4, 1e-5)
    dy, dc = drawn(STEPS, BATCH, UNITS, seed=3), drawn(BATCH, UNITS, seed=3)

    def loss(*x: Full) -> float:
        made, last = _lstm(*x)
        return float((made * dy).sum() + (last * dc).sum())

    shapes = ", ".join(f"f32[{','.join(map(str, x.shape))}]" for x in given)
    back = called("LstmLayerBwd", [*given, outputs, cell, kept, dy, dc], f"({shapes})", LAYER)
    for number, mine in enumerate(back):
        np.testing.assert_allclose(mine, differences(loss, full, number), 1e-3, 1e-4)


@pytest.mark.parametrize("after", [False, True])
def test_gru(after: bool) -> None:
    kernel = KERNEL[:, : 3 * UNITS]
    bias = drawn(3, 2, UNITS) if after else drawn(3, UNITS)
    h, outputs = STATE.astype(np.float64), []
    first = bias[:, 0] if after else bias
    second = bias[:, 1] if after else np.zeros_like(bias)
    for row in SEQUENCE:
        x, s = (np.split(m, 3, 1) for m in (row @ kernel[:INPUTS], h @ kernel[INPUTS:]))
        r, u = (expit(x[n] + s[n] + first[n] + second[n]) for n in (0, 1))
        inner = r * (s[2] + second[2]) if after else (r * h) @ kernel[INPUTS:, 2 * UNITS :]
        h = u * h + (1 - u) * np.tanh(x[2] + first[2] + inner)
        outputs.append(h)
    said = LAYER | {"is_training": False, "reset_after": after}
    (made,) = called("GRULayerFwd", [SEQUENCE, STATE, kernel, bias],
                     f"(f32[{STEPS},{BATCH},{UNITS}])", said)  # fmt: skip
    np.testing.assert_allclose(made, outputs, 1e-4, 1e-5)


def test_sequences_of_several_lengths_stop_where_they_end() -> None:
    given, said = [SEQUENCE, STATE, CELL, KERNEL, BIAS], LAYER | {"is_training": False}
    lengths = np.array([1, STEPS], np.int32)
    result = f"(f32[{STEPS},{BATCH},{UNITS}], f32[{BATCH},{UNITS}])"
    outputs, cell = called("DynamicLstmLayerFwd", [*given, lengths], result,
                           said | {"preserve_final_state": True})  # fmt: skip
    full, _ = called("LstmLayerFwd", given, result, said)
    short, last = called("LstmLayerFwd", [SEQUENCE[:1], *given[1:]],
                         result.replace(f"[{STEPS},", "[1,"), said)  # fmt: skip
    np.testing.assert_allclose(outputs[:, 1], full[:, 1], 1e-6)
    np.testing.assert_allclose(outputs[0, 0], short[0, 0], 1e-6)
    assert not outputs[1:, 0].any()
    np.testing.assert_allclose(cell[0], last[0], 1e-6)


def test_attention_moves_the_update_gate() -> None:
    kernel, bias = KERNEL[:, : 3 * UNITS], drawn(3, UNITS)
    said = LAYER | {"is_training": False, "reset_after": False}
    result = f"(f32[{STEPS},{BATCH},{UNITS}])"
    (plain,) = called("GRULayerFwd", [SEQUENCE, STATE, kernel, bias], result, said)
    lengths = np.full(BATCH, STEPS, np.int32)
    for score in (0, 1):
        scores = np.full((STEPS, BATCH), score, np.float32)
        (made,) = called("AUGRULayerFwd", [SEQUENCE, STATE, kernel, bias, lengths, scores], result,
                         said)  # fmt: skip
        if score == 0:
            np.testing.assert_allclose(made, plain, 1e-6)
        else:  # the candidate alone: between -1 and 1 whatever the state was
            (other,) = called(
                "AUGRULayerFwd",
                [SEQUENCE, 100 * STATE, kernel, bias, lengths, scores], result, said,
            )  # fmt: skip
            assert np.abs(made).max() <= 1 >= np.abs(other).max()


SEED = np.array([7, -3], np.int32)
_TRUNCATED = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
DRAWS: dict[str, tuple[list[NDArray[Any]], dict[str, float], float, float, float, float]] = {
    "StatelessRandomUniform": ([SEED], {"min_val": -1, "max_val": 3}, 1, 4 / 12**0.5, -1, 3),
    "StatelessRandomNormal": ([SEED], {}, 0, 1, -7, 7),
    "StatelessTruncatedNormal": ([SEED], {}, 0, _TRUNCATED, -2, 2),
    "TruncatedNormal": ([], {}, 0, _TRUNCATED, -2, 2),
    "StatelessRandomUniformInt": (
        [SEED, np.asarray(np.int32(-3)), np.asarray(np.int32(5))], {}, 0.5, (63 / 12) ** 0.5, -3, 4
    ),
}  # fmt: skip
"""Operands, attributes, mean, deviation, least and most."""


@pytest.mark.parametrize("target", DRAWS)
def test_random_numbers_are_distributed_as_they_say(target: str) -> None:
    given, said, mean, deviation, least, most = DRAWS[target]
    kind = "s32" if target.endswith("Int") else "f32"
    (made,) = called(target, given, f"{kind}[100,100]", said)
    assert least <= made.min()
    assert made.max() <= most
    assert abs(made.mean() - mean) < 0.06 * deviation  # six standard errors of 10,000
    assert abs(made.std() - deviation) < 0.05 * deviation
    if given:
        (again,) = called(target, given, f"{kind}[100,100]", said)
        np.testing.assert_array_equal(made, again)


def test_a_dropout_is_the_same_again_with_its_seed_and_reference() -> None:
    x = np.ones((50, 40), np.float32)
    said = json.dumps(json.dumps({"rate": 0.8, "scale": 1.25}))
    text = f"""HloModule m

ENTRY e {{
  x = f32[50,40] parameter(0)
  s = s32[2] parameter(1)
  d = (f32[50,40], s32[2], opaque[]) custom-call(x, s), custom_call_target="Dropout", backend_config={said}
  y = f32[50,40] get-tuple-element(d), index=0
  t = s32[2] get-tuple-element(d), index=1
  o = opaque[] get-tuple-element(d), index=2
  b = (f32[50,40], s32[2], opaque[]) custom-call(x, t, o), custom_call_target="Dropout", scale=1.25, rate=0.8
  z = f32[50,40] get-tuple-element(b), index=0
  ROOT r = (f32[50,40], f32[50,40]) tuple(y, z)
}}
"""  # noqa: E501
    made, again = evaluated(text, x, SEED)
    np.testing.assert_array_equal(made, again)
    assert set(np.unique(made)) == {0, 1.25}
    assert abs((made > 0).mean() - 0.8) < 6 * 0.4 / math.sqrt(made.size)
    (rows, *_) = called("Dropout", [x, SEED], "(f32[50,40], s32[2], opaque[])",
                        {"rate": 0.5, "scale": 2, "noise_shape": [50, 1]})  # fmt: skip
    assert (rows == rows[:, :1]).all()
    assert 0 < rows.mean() < 2


def test_a_seed_is_of_any_numbers() -> None:
    (made,) = evaluated(text_of_call("Seed", [], "s32[2]"))
    assert made.shape == (2,)
