"""Pipelines with remote memory and groups, tampered with: what is proved computes the same."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Channel, Pipeline, Sequence, VariableId
from hloipu_runtime.simulate.exact.exact import ExactEngine
from tests.runtime.simulate.exact.test_pipelining import pipeline_of, totals
from tests.support.pipelined_programs import Feed, PipelineMaker
from tools.prove_exchanges.editing import blocks_of, with_steps
from tools.prove_exchanges.order_kinds import steps_swapped
from tools.prove_exchanges.places import Subject

Tamper = Callable[[Program, random.Random], Program | None]
COUNT = 5
INPUTS = [np.array([1, 2, 4, 8, 16, 32], np.float32) * 3.0**n for n in range(COUNT)]
EVERYTHING = frozenset(("activations", "weights", "totals"))
PROGRAMS = {
    "side by side": PipelineMaker(2, 1, COUNT, offloaded=EVERYTHING),
    "interleaved": PipelineMaker(3, 2, COUNT, offloaded=EVERYTHING),
    "shared": PipelineMaker(4, 1, COUNT, ipus=(0, 1, 1, 0), offloaded=EVERYTHING),
    "groups": PipelineMaker(2, 4, COUNT, group=2, offloaded=EVERYTHING),
    "pages": PipelineMaker(2, 4, COUNT, group=2, offloaded=frozenset(("pages", "activations"))),
    "groups on tiles": PipelineMaker(2, 4, COUNT, group=3, offloaded=frozenset(("weights",))),
}


def swapped(program: Program, rng: random.Random) -> Program | None:
    """Exchange two neighbours that depend on each other."""
    return steps_swapped(Subject("pipeline", program, 4), rng)


def copy_changed(program: Program, rng: random.Random) -> Program | None:
    """Leave a remote copy out, or have one end of it be another variable."""
    places = [
        (block, n)
        for block in blocks_of(program)
        for n, step in enumerate(block.steps)
        if isinstance(step, RemoteCopy)
    ]
    if not places:
        return None
    block, n = rng.choice(places)
    step = block.steps[n]
    assert isinstance(step, RemoteCopy)
    steps = list(block.steps)
    what = rng.choice(("drop", "source", "destination"))
    if what == "drop":
        del steps[n]
    else:
        other = another(program, getattr(step, what), rng)
        steps[n] = replace(step, **{what: other})
    return with_steps(program, block.path, tuple(steps))


def channel_changed(program: Program, rng: random.Random) -> Program | None:
    """Have an end or a place of a channel be another variable, or leave out a place or all."""
    step = pipeline_of(program)
    number = rng.randrange(len(step.channels))
    channel = step.channels[number]
    what = rng.choice(("drop", "source", "destination", "place", "fewer", "consumer"))
    changed: Channel | None = channel
    if what == "drop":
        changed = None
    elif what == "source":
        changed = channel._replace(source=another(program, channel.source, rng))
    elif what == "destination":
        changed = channel._replace(destination=another(program, channel.destination, rng))
    elif what == "place":
        places = list(channel.places)
        at = rng.randrange(len(places))
        places[at] = another(program, places[at], rng)
        changed = channel._replace(places=tuple(places))
    elif what == "fewer":
        changed = channel._replace(places=channel.places[:-1])
    else:
        changed = channel._replace(consumer=rng.randrange(len(step.stages)))
    channels = list(step.channels)
    channels[number : number + 1] = [] if changed is None else [changed]
    return with_pipeline(program, replace(step, channels=tuple(channels)))


def order_changed(program: Program, rng: random.Random) -> Program | None:
    """Begin more or less often, with more or fewer in a group, or move what is before groups."""
    step = pipeline_of(program)
    what = rng.choice(("interval", "group", "first"))
    if what == "interval":
        return with_pipeline(program, replace(step, interval=rng.randrange(1, 6)))
    if what == "group":
        return with_pipeline(program, replace(step, group=rng.randrange(1, 6)))
    stages = list(step.stages)
    n = rng.randrange(len(stages))
    steps = stages[n].body.steps
    if not steps:
        return None
    first = (*stages[n].first.steps, steps[0])
    stages[n] = stages[n]._replace(first=Sequence(first), body=Sequence(steps[1:]))
    return with_pipeline(program, replace(step, stages=tuple(stages)))


def page_changed(program: Program, rng: random.Random) -> Program | None:
    """Leave out what is brought for groups, or bring other variables, or for another stage."""
    step = pipeline_of(program)
    stages = list(step.stages)
    n = rng.choice([n for n, stage in enumerate(stages) if stage.paged] or [0])
    pages = list(stages[n].paged)
    if not pages:
        return None
    what = rng.choice(("drop", "there", "here", "both", "twice", "stage"))
    if what in ("drop", "stage"):
        page = pages.pop()
    elif what == "both":
        pages[0] = pages[0]._replace(there=pages[0].here, here=pages[0].there)
    elif what == "twice":
        pages.append(pages[0])
    else:
        pages[0] = pages[0]._replace(**{what: another(program, getattr(pages[0], what), rng)})
    stages[n] = stages[n]._replace(paged=tuple(pages))
    if what == "stage":
        m = rng.randrange(len(stages))
        stages[m] = stages[m]._replace(paged=(*stages[m].paged, page))
    return with_pipeline(program, replace(step, stages=tuple(stages)))


def another(program: Program, number: VariableId, rng: random.Random) -> VariableId:
    """Return another variable; all are of one type and shape."""
    return rng.choice([n for n in range(len(program.variables)) if n != number])


def with_pipeline(program: Program, step: Pipeline) -> Program:
    return replace(program, body=Sequence((*program.body.steps[:-1], step)))


def run(program: Program) -> list[Array]:
    return totals(ExactEngine(program, poison=True), program, Feed(INPUTS))


@pytest.mark.parametrize("tamper", [swapped, copy_changed, channel_changed, order_changed])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.thinned(3)
def test_no_wrong_program_is_proved(name: str, tamper: Tamper) -> None:
    check(name, tamper)


def test_no_wrong_page_is_proved() -> None:
    check("pages", page_changed)


def check(name: str, tamper: Tamper) -> None:
    """Assert that what the proof lets pass computes the same."""
    program = fresh(name)
    assert faults_of(program, 4) == []
    right = run(program)
    rng = random.Random(f"{name} {tamper.__name__}")
    refused = tried = 0
    for _ in range(120):
        changed = tamper(program, rng)
        if changed is None or changed == program:
            continue
        tried += 1
        if faults_of(changed, 4):
            refused += 1
        else:
            assert all(map(np.array_equal, run(changed), right))
    assert refused > 20 or not tried


def fresh(name: str) -> Program:
    """Return the program of that name; a maker serves once."""
    maker = PROGRAMS[name]
    return PipelineMaker(
        maker.stages, maker.interval, maker.count, maker.ipus,
        group=maker.group, offloaded=maker.offloaded,
    ).program()  # fmt: skip
