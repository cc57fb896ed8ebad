"""Concurrent stages tampered with: the proof refuses, or the tiles still compute the same."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import (
    Exchange,
    Parallel,
    Pipeline,
    Repeat,
    Sequence,
    Stage,
    Step,
    StreamIn,
    StreamOut,
)
from hloipu_runtime.simulate.exact.exact import ExactEngine
from tests.end_to_end.test_concurrent_stages import INFERENCE

Map = tuple[int | tuple[int, ...], ...]
COUNT = 3
TILES = 4


class Host:
    """Feeds a queue of rising numbers, and keeps what comes out."""

    def __init__(self) -> None:
        self.given = 0
        self.found: list[Array] = []

    def take(self, stream: str) -> Array:
        self.given += 1
        return np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * self.given

    def give(self, stream: str, value: Array) -> None:
        self.found.append(np.array(value))


def results(program: Program) -> list[Array] | None:
    """Return what comes out, tile by tile; None: the engine refuses."""
    host = Host()
    try:
        ExactEngine(program, poison=True).run(host)
    except HloipuError:
        return None
    return host.found


def subject(device_map: Map = ((0, 1), 0)) -> Program:
    return hloipu.compile(
        INFERENCE, target="tiny", cache=False, micro_batches=COUNT, device_map=device_map,
        feed={"data": (0,)}, outfeed=["y=0"], loop=1, over_memory="allow",
    ).program  # fmt: skip


def with_pipeline(program: Program, step: Pipeline) -> Program:
    def put(x: Step) -> Step:
        if isinstance(x, Repeat):
            return replace(x, body=Sequence(tuple(map(put, x.body.steps))))
        return step if isinstance(x, Pipeline) else x

    return replace(program, body=Sequence(tuple(map(put, program.body.steps))))


def pipeline_in(steps: tuple[Step, ...]) -> Pipeline:
    for x in steps:
        if isinstance(x, Pipeline):
            return x
        if isinstance(x, Repeat):
            return pipeline_in(x.body.steps)
    raise LookupError("no pipeline")


def orders(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield a sequence with one step left out, or two neighbours changed over; inner ones too."""
    for n, x in enumerate(steps):
        if not isinstance(x, StreamIn | StreamOut):
            yield (*steps[:n], *steps[n + 1 :])
        if n + 1 < len(steps):
            yield (*steps[:n], steps[n + 1], x, *steps[n + 2 :])
        if isinstance(x, Parallel):
            for changed in branchings(x):
                yield (*steps[:n], *changed, *steps[n + 1 :])


def branchings(x: Parallel) -> Iterator[tuple[Step, ...]]:
    first, second = x.branches
    for a, b in ((first, second), (second, first)):
        yield (Parallel((a, b)),)
        yield (a, b)
        yield (Parallel((Sequence((*a.steps, *b.steps[:1])), Sequence(b.steps[1:]))),)
        yield (Parallel((Sequence(a.steps[:-1]), b)), a.steps[-1])
        for changed in orders(a.steps):
            yield (Parallel((Sequence(changed), b)),)


def mutants(program: Program) -> Iterator[Program]:
    step = pipeline_in(program.body.steps)
    for number, stage in enumerate(step.stages):
        for changed in orders(stage.body.steps):
            yield with_stage(program, step, number, stage._replace(body=Sequence(changed)))
        for ipus in ((0,), (1,), (0, 1), (1, 0)):
            yield with_stage(program, step, number, stage._replace(ipus=ipus))
    for number in range(len(step.channels)):
        rest = (*step.channels[:number], *step.channels[number + 1 :])
        yield with_pipeline(program, replace(step, channels=rest))
    for number, variable in enumerate(program.variables):
        moved = replace(variable, ipu=(variable.ipu + 1) % program.ipus)
        variables = (*program.variables[:number], moved, *program.variables[number + 1 :])
        yield replace(program, variables=variables)


def with_stage(program: Program, step: Pipeline, number: int, stage: Stage) -> Program:
    stages = (*step.stages[:number], stage, *step.stages[number + 1 :])
    return with_pipeline(program, replace(step, stages=stages))


@pytest.mark.parametrize("device_map", [((0, 1), 0), ((1, 0), 2)])
def test_what_the_proof_lets_pass_computes_the_same(device_map: Map) -> None:
    program = subject(device_map)
    assert faults_of(program, TILES) == []
    wanted = results(program)
    assert wanted is not None
    assert len(wanted) == COUNT
    proved = refused = 0
    for mutant in mutants(program):
        if faults_of(mutant, TILES):
            refused += 1
            continue
        proved += 1
        found = results(mutant)
        assert found is not None
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert refused > 15
    assert proved > 5


def test_an_exchange_left_out_is_found_in_every_stage() -> None:
    program = subject()
    step = pipeline_in(program.body.steps)
    left_out = 0
    for number, stage in enumerate(step.stages):
        for n, x in enumerate(stage.body.steps):
            if isinstance(x, Exchange):
                rest = (*stage.body.steps[:n], *stage.body.steps[n + 1 :])
                mutant = with_stage(program, step, number, stage._replace(body=Sequence(rest)))
                assert faults_of(mutant, TILES)
                left_out += 1
    assert left_out
