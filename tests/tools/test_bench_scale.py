"""The training steps that scale is measured with."""

import hloipu
from hloipu.choosing import sweep
from hloipu.options.resolve import resolve
from tools.bench.scale import training_step


def test_steps_are_as_long_as_asked_and_can_be_cut() -> None:
    for count in (100, 400):
        module = hloipu.verify(training_step(count))
        assert abs(module.instruction_count - count) < 40
    options = resolve("estimate", {"target": "tiny", "loop": 1}).options
    (row,) = sweep(hloipu.verify(training_step(100)), options, {"stages": ["2"]}).rows
    assert row.candidate.stages == 2
