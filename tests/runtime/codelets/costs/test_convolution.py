"""Costs of many convolutions at once: the same as of each alone."""

import numpy as np
import pytest

from hloipu_runtime.codelets.costs.convolution import (
    ConvolutionShape,
    convolution_work,
    convolutions_cycles,
)
from hloipu_runtime.machine.load import load_machine

RNG = np.random.default_rng(31)
TYPES = [("f32", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s32", "s32"), ("f8e4m3fn", "f16")]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("target", ["gc2", "bow"])
@pytest.mark.parametrize("result", ["f32", "f16"])
@pytest.mark.parametrize("half", [False, True])
def test_many_at_once(types: tuple[str, str], target: str, result: str, half: bool) -> None:
    machine, count = load_machine(target), 80
    groups, rows, row, out = RNG.integers(1, 40, (4, count))
    channels = RNG.integers(1, 70, count)
    channels[:20] = out[:20] = 1
    channels[20:40] = RNG.integers(1, 5, 20)
    out[20:40] = RNG.integers(1, 5, 20)
    taps = RNG.integers(1, 5, (2, count))
    taps[:, 60:] = 1
    stride = 2
    shape = ConvolutionShape(groups, rows, row, channels, out, tuple(taps), stride)
    found = convolutions_cycles(machine, shape, types, result, half_partials=half)
    for n in range(count):
        one = ConvolutionShape(
            int(groups[n]), int(rows[n]), int(row[n]), int(channels[n]), int(out[n]),
            (int(taps[0, n]), int(taps[1, n])), stride,
        )  # fmt: skip
        work = convolution_work(machine, one, types, result, half_partials=half)
        assert found[n] == work.cycles
