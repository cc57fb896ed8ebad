"""Tampered steps that are cut over IPUs and replicas are found out, by the proof and by running."""

from dataclasses import replace
from random import Random

import pytest

from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Pipeline, StreamOut
from tests.support import concurrent_trials, pipeline_trials
from tests.support.concurrent_trials import Concurrent
from tests.support.pipeline_reference import EVERY_STEP
from tests.support.pipeline_trials import Cut
from tests.support.pipelined_programs import PipelineMaker
from tests.support.program_checker import misread, violations
from tools.prove_exchanges.cut_steps import subject_of
from tools.prove_exchanges.kinds import CUT_KINDS, mutant
from tools.prove_exchanges.places import Subject
from tools.prove_exchanges.table import failures
from tools.prove_exchanges.trial import CAUGHT, EQUIVALENT, UNRUN, Original, Verdict, judged

CUTS = [
    Cut("mlp_momentum", 2, "sequential/2", 3, replicas=2, offload="on", away="all"),
    Cut("mlp_sgd", 3, "interleaved", 4, "running_mean", map="shared"),
]
TOWERS = Concurrent("added", schedule="grouped")


@pytest.fixture(scope="module")
def originals() -> list[Original]:
    made = [
        subject_of(str(cut), pipeline_trials.compiled(cut), EVERY_STEP[cut.step], cut.micro_batches)
        for cut in CUTS
    ]
    towers = concurrent_trials.compiled(TOWERS)
    made.append(subject_of("towers", towers, TOWERS.step, TOWERS.micro_batches))
    return [Original(subject) for subject in made]


def drawn(originals: list[Original], kind: str, rng: Random) -> Verdict:
    while True:
        original = rng.choice(originals)
        changed = mutant(original.subject, kind, rng)
        if changed is not None:
            return judged(original, kind, changed)


@pytest.mark.large
def test_mutants_of_many_kinds_are_caught(originals: list[Original]) -> None:
    """Every second kind; `make prove-exchanges` has all, many times."""
    rng = Random(4)
    every = [drawn(originals, kind, rng) for kind in sorted(CUT_KINDS)[::2]]
    live = [verdict for verdict in every if verdict.exact != EQUIVALENT]
    assert failures(every) == []
    assert len(live) > 0.7 * len(every)
    ran = [x for x in live if x.exact != UNRUN]
    assert len([x for x in ran if x.exact in CAUGHT]) > 0.85 * len(ran)


@pytest.mark.large
def test_the_referee_finds_nothing_in_what_the_compiler_made(originals: list[Original]) -> None:
    for original in originals:
        subject = original.subject
        assert faults_of(subject.program, subject.tiles_per_ipu) == []
        assert violations(subject.program, subject.tiles_per_ipu, runs=1) == []
        assert judged(original, "none", subject.program).exact == EQUIVALENT


def test_a_run_has_all_participants_and_what_they_keep(originals: list[Original]) -> None:
    replicated = originals[0]
    run = replicated.run(0)
    assert run is not None
    ports = replicated.subject.program.state
    assert {f"{n} state {port.name}" for n in (0, 1) for port in ports} <= run.outputs.keys()
    assert len([name for name in run.outputs if "state" not in name]) == 2 * 2 * 3  # losses
    other = replicated.run(1)
    assert other is not None
    assert any((run.outputs[name] != other.outputs[name]).any() for name in run.outputs)


EVERYTHING = frozenset(("activations", "weights", "totals"))
MADE = {
    "side by side": (2, 1, 5, 1),
    "interleaved": (3, 2, 5, 1),
    "one after the other": (2, 4, 4, 1),
    "groups": (2, 4, 5, 2),
}


@pytest.mark.parametrize("offloaded", [frozenset[str](), EVERYTHING], ids=["here", "away"])
@pytest.mark.parametrize("name", MADE)
def test_the_referee_follows_micro_batches(name: str, offloaded: frozenset[str]) -> None:
    stages, interval, count, group = MADE[name]
    program = PipelineMaker(stages, interval, count, group=group, offloaded=offloaded).program()
    assert violations(program, 4) == []
    step = program.body.steps[-1]
    assert isinstance(step, Pipeline)
    for n, channel in enumerate(step.channels):
        left = replace(step, channels=(*step.channels[:n], *step.channels[n + 1 :]))
        changed = replace(
            program, body=replace(program.body, steps=(*program.body.steps[:-1], left))
        )
        assert misread(changed)
        if len(channel.places) == 1:
            continue
        fewer = channel._replace(places=channel.places[:-1])
        channels = (*step.channels[:n], fewer, *step.channels[n + 1 :])
        changed = replace(
            program,
            body=replace(
                program.body, steps=(*program.body.steps[:-1], replace(step, channels=channels))
            ),
        )
        assert misread(changed)


def test_a_result_that_no_step_hands_out_is_a_fault(originals: list[Original]) -> None:
    rng = Random(1)
    subject: Subject = originals[1].subject
    seen = 0
    for _ in range(12):
        changed = mutant(subject, "stream dropped", rng)
        assert changed is not None
        dropped = Subject("dropped", changed, subject.tiles_per_ipu)
        if len(dropped.steps(StreamOut)) == len(subject.steps(StreamOut)):
            continue
        seen += 1
        rules = {fault.rule for fault in faults_of(changed, subject.tiles_per_ipu)}
        assert rules == {"stream"}
    assert seen
