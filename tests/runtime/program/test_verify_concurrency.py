"""Every rule of stages on several IPUs, by a program that breaks it and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Parallel, Pipeline, Sequence, Stage, Sync
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from tests.support.concurrent_programs import ConcurrentMaker, pipeline_of, steps_of

Change = Callable[[Program], Program]


def told(program: Program) -> list[str]:
    return [f"{fault.rule}: {fault.message}" for fault in faults_of(program, 4)]


def with_stage(program: Program, number: int, stage: Stage) -> Program:
    step: Pipeline = pipeline_of(program)
    stages = list(step.stages)
    stages[number] = stage
    changed = replace(step, stages=tuple(stages))
    return replace(program, body=Sequence((*program.body.steps[:-1], changed)))


def with_steps(program: Program, *steps: object) -> Program:
    stage = pipeline_of(program).stages[1]
    return with_stage(program, 1, stage._replace(body=Sequence(tuple(steps))))  # type: ignore[arg-type]


def one_ipu_too_few(program: Program) -> Program:
    return with_stage(program, 1, pipeline_of(program).stages[1]._replace(ipus=(1,)))


def all_meet(program: Program) -> Program:
    branches, _, *rest = steps_of(program, 1)
    return with_steps(program, branches, Sync(4), *rest)


def branches_on_one_ipu(program: Program) -> Program:
    branches, *rest = steps_of(program, 1)
    assert isinstance(branches, Parallel)
    short, long = branches.branches
    parts = (Sequence(long.steps[:1]), Sequence(long.steps[1:]))
    # The second part reads what the first one makes: as if both had been written for one IPU.
    return with_steps(program, Sequence(short.steps), Parallel(parts), *rest)


def channel_to_another_ipu(program: Program) -> Program:
    channel = pipeline_of(program).channels[1]
    variables = list(program.variables)
    variables[channel.destination] = replace(variables[channel.destination], ipu=3)
    return replace(program, variables=tuple(variables))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (one_ipu_too_few, "which is not on IPU 1"),
        (all_meet, "p1 has 4 IPUs meet, and is on IPUs 1, 2"),
        (branches_on_one_ipu, "branch 1 and others before it share IPU 2"),
        (channel_to_another_ipu, "which is not on its consumer's IPU"),
    ],
)
def test_what_breaks_a_rule_is_told(change: Change, said: str) -> None:
    program = ConcurrentMaker(3).program()
    assert told(program) == []
    found = told(change(program))
    assert any(said in line for line in found), found


@pytest.mark.parametrize("ipus", [(), (1, 1), (1, 4), (-1, 2)])
def test_files_have_no_stage_on_ipus_that_are_not_there(ipus: tuple[int, ...]) -> None:
    program = ConcurrentMaker(3).program()
    stage = pipeline_of(program).stages[1]._replace(ipus=ipus)
    data = encode_program(with_stage(program, 1, stage))
    with pytest.raises(ArtefactError) as caught:
        decode_program(data.meta, data.arrays)
    assert caught.value.code == "E4011"
    assert "a stage on" in str(caught.value)
