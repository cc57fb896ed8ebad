"""Stages on several IPUs in both engines, through text and file."""

from dataclasses import replace

import numpy as np
import pytest

from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Pipeline, Sequence
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from tests.support.concurrent_programs import SHAPE, ConcurrentMaker, pipeline_of, steps_of
from tests.support.pipelined_programs import Feed
from tests.support.program_reader.parser import parse_program

IPUS = [(0, 1, 2, 3), (0, 1, 2, 0), (0, 1, 0, 1), (0, 0, 0, 0)]


def total(engine: ExactEngine | FunctionalEngine, inputs: list[Array]) -> Array:
    engine.state = {"total": np.zeros(SHAPE, np.float32)}
    engine.run(Feed(inputs))
    return engine.state["total"]


@pytest.mark.parametrize("ipus", IPUS)
@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_totals_are_those_of_the_closed_form(
    count: int, interval: int, ipus: tuple[int, int, int, int]
) -> None:
    maker = ConcurrentMaker(count, interval, ipus=ipus, at_once=ipus[1] != ipus[2])
    program = maker.program()
    assert faults_of(program, 4) == []
    inputs = [np.arange(6, dtype=np.float32) + 100 * n for n in range(count)]
    for engine in (
        ExactEngine(program),
        ExactEngine(program, poison=True),
        FunctionalEngine(program),
    ):
        np.testing.assert_array_equal(total(engine, inputs), maker.expected(inputs))


def test_text_and_file_hold_the_ipus_of_each_stage() -> None:
    program = ConcurrentMaker(3).program()
    text = print_program(program, constants=True)
    assert 'stage "p1" ipus (1, 2) {' in text
    assert 'stage "p2" ipu 3 {' in text
    assert pipeline_of(parse_program(text, name="text")) == pipeline_of(program)
    data = encode_program(program)
    found = decode_program(data.meta, data.arrays)
    assert pipeline_of(found) == pipeline_of(program)


def test_branches_that_exchange_values_need_a_level_between_them() -> None:
    """The order within a slot matters: a join before its branches reads what was there before."""
    program = ConcurrentMaker(2).program()
    step = pipeline_of(program)
    branches, meeting, brought, added = steps_of(program, 1)
    stages = list(step.stages)
    stages[1] = stages[1]._replace(body=Sequence((meeting, brought, branches, added)))
    wrong = with_pipeline(program, replace(step, stages=tuple(stages)))
    assert {fault.rule for fault in faults_of(wrong, 4)} == {"version"}


def with_pipeline(program: Program, step: Pipeline) -> Program:
    return replace(program, body=Sequence((*program.body.steps[:-1], step)))
