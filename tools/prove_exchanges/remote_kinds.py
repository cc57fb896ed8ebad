"""Kinds of mutants of what leaves an IPU: remote copies, collectives, streams, and what is kept."""

import random
from dataclasses import replace
from typing import Any

from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import (
    Carried,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamIn,
    StreamOut,
    Sync,
)
from tools.prove_exchanges.editing import with_steps
from tools.prove_exchanges.places import Subject, Tamper, drawn, put, step_replaced


def dropped(*kinds: type[RemoteCopy | Collective | StreamIn | StreamOut | Sync]) -> Tamper:
    """Return the kind that leaves out one step of these kinds."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place = drawn(subject.steps(*kinds), rng)
        if place is None:
            return None
        steps = place.block.steps
        left = (*steps[: place.step], *steps[place.step + 1 :])
        return with_steps(subject.program, place.block.path, left)

    return tamper


def copy_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Copy from or to another variable, rather one in the same kind of memory."""
    place = drawn(subject.steps(RemoteCopy), rng)
    if place is None:
        return None
    step = place.there
    assert isinstance(step, RemoteCopy)
    end = rng.choice(("source", "destination"))
    here = getattr(step, end)
    others = subject.others(here)
    is_remote = subject.variable(here).role is Role.REMOTE
    near = [v for v in others if (subject.variable(v).role is Role.REMOTE) == is_remote]
    other = drawn(near if near and rng.random() < 0.8 else others, rng)
    if other is None:
        return None
    return step_replaced(subject, place.block.path, place.step, replace(step, **{end: other}))


def collective_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Have a collective take or leave a tensor in another variable."""
    place = drawn(subject.steps(Collective), rng)
    if place is None:
        return None
    step = place.there
    assert isinstance(step, Collective)
    side = rng.choice(("inputs", "outputs"))
    moved = getattr(step, side)
    number = rng.randrange(len(moved)) if moved else -1
    other = drawn(subject.others(moved[number].variable), rng) if moved else None
    if other is None:
        return None
    change: dict[str, Any] = {side: put(moved, number, moved[number]._replace(variable=other))}
    return step_replaced(subject, place.block.path, place.step, replace(step, **change))


def stream_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Fill another variable from the host, or hand it another one."""
    place = drawn(subject.steps(StreamIn, StreamOut), rng)
    if place is None:
        return None
    step = place.there
    assert isinstance(step, StreamIn | StreamOut)
    other = drawn(subject.others(step.variable), rng)
    if other is None:
        return None
    return step_replaced(subject, place.block.path, place.step, replace(step, variable=other))


def state_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Keep another variable from run to run, or two in each other's place."""
    ports = subject.program.state
    if not ports:
        return None
    number = rng.randrange(len(ports))
    port = ports[number]
    others = subject.others(port.variable)
    place_by_variable = {x.variable: n for n, x in enumerate(ports)}
    other = drawn(others, rng)
    if other is None:
        return None
    changed = put(ports, number, replace(port, variable=other))
    if other in place_by_variable:
        there = place_by_variable[other]
        changed = put(changed, there, replace(ports[there], variable=port.variable))
    return replace(subject.program, state=changed)


def carried_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Hand another variable on to the next turn of a loop, or to the next micro-batch."""
    places = subject.steps(Repeat, RepeatWhile, Pipeline)
    places = [x for x in places if _carried(x.there)]
    place = drawn(places, rng)
    if place is None:
        return None
    step = place.there
    assert isinstance(step, Repeat | RepeatWhile | Pipeline)
    number = rng.randrange(len(step.carried))
    item = step.carried[number]
    if rng.random() < 0.3:
        left = (*step.carried[:number], *step.carried[number + 1 :])
        return step_replaced(subject, place.block.path, place.step, replace(step, carried=left))
    other = drawn(subject.others(item.variable), rng)
    if other is None:
        return None
    carried = put(step.carried, number, item._replace(variable=other))
    return step_replaced(subject, place.block.path, place.step, replace(step, carried=carried))


def _carried(step: object) -> tuple[Carried, ...]:
    return step.carried if isinstance(step, Repeat | RepeatWhile | Pipeline) else ()


def branch_step_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Do a step in another branch of those that run at once, or after all of them."""
    place = drawn(subject.steps(Parallel), rng)
    if place is None:
        return None
    step = place.there
    assert isinstance(step, Parallel)
    full = [n for n, branch in enumerate(step.branches) if branch.steps]
    number = drawn(full, rng)
    if number is None:
        return None
    steps = step.branches[number].steps
    at = rng.randrange(len(steps))
    branches = put(step.branches, number, Sequence((*steps[:at], *steps[at + 1 :])))
    block = place.block.steps
    target = rng.randrange(len(branches) + 1)
    if target == number:
        return None
    if target < len(branches):
        there = branches[target].steps
        into = rng.randrange(len(there) + 1)
        joined = Sequence((*there[:into], steps[at], *there[into:]))
        branches = put(branches, target, joined)
        return step_replaced(subject, place.block.path, place.step, Parallel(branches))
    after = (*block[: place.step], Parallel(branches), steps[at], *block[place.step + 1 :])
    return with_steps(subject.program, place.block.path, after)
