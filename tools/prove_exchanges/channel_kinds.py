"""Kinds of mutants in which positions of a pipeline hand on other things, or at other times."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Channel, Pipeline, Sequence, Stage
from tools.prove_exchanges.places import (
    StepPlace,
    Subject,
    Tamper,
    drawn,
    looks,
    put,
    step_replaced,
)

Change = Callable[[Subject, Pipeline, random.Random], Pipeline | None]


def on_pipeline(change: Change) -> Tamper:
    """Return the kind that changes a pipeline itself, not what its stages do."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place: StepPlace | None = drawn(subject.steps(Pipeline), rng)
        if place is None:
            return None
        step = place.there
        assert isinstance(step, Pipeline)
        changed = change(subject, step, rng)
        if changed is None:
            return None
        return step_replaced(subject, place.block.path, place.step, changed)

    return tamper


def on_channel(
    change: Callable[[Subject, Pipeline, Channel, random.Random], Channel | None],
) -> Tamper:
    """Return the kind that changes one channel."""

    def with_other(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
        if not step.channels:
            return None
        number = rng.randrange(len(step.channels))
        changed = change(subject, step, step.channels[number], rng)
        if changed is None:
            return None
        return replace(step, channels=put(step.channels, number, changed))

    return on_pipeline(with_other)


def channel_dropped(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Hand one value on to nobody."""
    if not step.channels:
        return None
    number = rng.randrange(len(step.channels))
    return replace(step, channels=(*step.channels[:number], *step.channels[number + 1 :]))


def end_moved(
    subject: Subject, step: Pipeline, channel: Channel, rng: random.Random
) -> Channel | None:
    """Take what is handed on from another variable, or put it into another one."""
    end = rng.choice(("source", "destination"))
    other = drawn(subject.others(getattr(channel, end)), rng)
    change: dict[str, Any] = {end: other}
    return None if other is None else channel._replace(**change)


def place_moved(
    subject: Subject, step: Pipeline, channel: Channel, rng: random.Random
) -> Channel | None:
    """Let what is under way wait in another variable, twice in one, or where another waits."""
    number = rng.randrange(len(channel.places))
    here = channel.places[number]
    near = [v for x in step.channels for v in x.places if v in subject.others(here)]
    other = drawn(near, rng) if near and rng.random() < 0.7 else drawn(subject.others(here), rng)
    return None if other is None else channel._replace(places=put(channel.places, number, other))


def place_dropped(
    subject: Subject, step: Pipeline, channel: Channel, rng: random.Random
) -> Channel | None:
    """Let fewer micro-batches be under way."""
    if len(channel.places) < 2:
        return None
    number = rng.randrange(len(channel.places))
    return channel._replace(places=(*channel.places[:number], *channel.places[number + 1 :]))


def places_turned(
    subject: Subject, step: Pipeline, channel: Channel, rng: random.Random
) -> Channel | None:
    """Begin with another place: every micro-batch still finds what was put there for it."""
    if len(channel.places) < 2:
        return None
    return channel._replace(places=(*channel.places[1:], channel.places[0]))


def channel_moved(
    subject: Subject, step: Pipeline, channel: Channel, rng: random.Random
) -> Channel | None:
    """Hand on from another position, or to another one."""
    end = rng.choice(("producer", "consumer"))
    others = [n for n in range(len(step.stages)) if n != getattr(channel, end)]
    other = drawn(others, rng)
    change: dict[str, Any] = {end: other}
    return None if other is None else channel._replace(**change)


def channels_swapped(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Have two values go each other's way."""
    pairs = [
        (a, b)
        for a, one in enumerate(step.channels)
        for b, other in enumerate(step.channels[a + 1 :], a + 1)
        if looks(subject.variable(one.destination)) == looks(subject.variable(other.destination))
        and len(one.places) == len(other.places)
    ]
    pair = drawn(pairs, rng)
    if pair is None:
        return None
    one, other = (step.channels[n] for n in pair)
    what = rng.choice(("places", "destination"))
    first = one._replace(**{what: getattr(other, what)})
    second = other._replace(**{what: getattr(one, what)})
    return replace(step, channels=put(put(step.channels, pair[0], first), pair[1], second))


def slots_changed(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Begin micro-batches more or less often, or have more or fewer of them in a group."""
    if rng.random() < 0.5:
        return replace(step, interval=rng.choice((1, 2, step.interval + 1, len(step.stages))))
    return replace(step, group=rng.choice((1, 2, 3, step.group + 1)))


def stage_moved(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Have a position keep other IPUs, or fewer than it works on."""
    number = rng.randrange(len(step.stages))
    stage = step.stages[number]
    if len(stage.ipus) > 1 and rng.random() < 0.5:
        left = rng.choice(stage.ipus)
        ipus = tuple(ipu for ipu in stage.ipus if ipu != left)
    else:
        ipus = (rng.randrange(subject.program.ipus + 1),)
    return replace(step, stages=put(step.stages, number, stage._replace(ipus=ipus)))


def page_moved(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Leave out what a position brings from remote memory for a group, or bring another one."""
    full = [n for n, stage in enumerate(step.stages) if stage.paged]
    number = drawn(full, rng)
    if number is None:
        return None
    stage = step.stages[number]
    which = rng.randrange(len(stage.paged))
    page = stage.paged[which]
    if rng.random() < 0.3:
        left = (*stage.paged[:which], *stage.paged[which + 1 :])
        return replace(step, stages=put(step.stages, number, stage._replace(paged=left)))
    end = rng.choice(("there", "here"))
    other = drawn(subject.others(getattr(page, end)), rng)
    if other is None:
        return None
    paged = put(stage.paged, which, page._replace(**{end: other}))
    return replace(step, stages=put(step.stages, number, stage._replace(paged=paged)))


def first_moved(subject: Subject, step: Pipeline, rng: random.Random) -> Pipeline | None:
    """Do a step once for a group and not for each micro-batch, or the other way round."""
    number = rng.randrange(len(step.stages))
    stage = step.stages[number]
    changed = _into_first(stage, rng) if rng.random() < 0.5 else _out_of_first(stage, rng)
    return None if changed is None else replace(step, stages=put(step.stages, number, changed))


def _into_first(stage: Stage, rng: random.Random) -> Stage | None:
    steps = stage.body.steps
    if not steps:
        return None
    n = rng.randrange(len(steps))
    first = Sequence((*stage.first.steps, steps[n]))
    return stage._replace(first=first, body=Sequence((*steps[:n], *steps[n + 1 :])))


def _out_of_first(stage: Stage, rng: random.Random) -> Stage | None:
    steps = stage.first.steps
    if not steps:
        return None
    n = rng.randrange(len(steps))
    body = Sequence((steps[n], *stage.body.steps))
    return stage._replace(first=Sequence((*steps[:n], *steps[n + 1 :])), body=body)
