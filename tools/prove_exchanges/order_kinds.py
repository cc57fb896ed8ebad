"""Kinds of mutants in which steps come in another order."""

import random

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange, Step
from hloipu_runtime.program.uses import used, written
from tools.prove_exchanges.editing import with_steps
from tools.prove_exchanges.places import Subject, drawn


def steps_swapped(subject: Subject, rng: random.Random) -> Program | None:
    """Exchange two neighbours of which one reads or writes what the other writes."""
    block = drawn([b for b in subject.blocks if len(b.steps) > 1], rng)
    if block is None:
        return None
    pairs = [
        n
        for n in range(len(block.steps) - 1)
        if _depend(subject.program, block.steps[n], block.steps[n + 1])
    ]
    n = drawn(pairs, rng)
    if n is None:
        return None
    steps = list(block.steps)
    steps[n], steps[n + 1] = steps[n + 1], steps[n]
    return with_steps(subject.program, block.path, tuple(steps))


def _depend(program: Program, first: Step, second: Step) -> bool:
    return bool(
        written(first, program) & used(second, program)
        or used(first, program) & written(second, program)
    )


def exchange_moved(subject: Subject, rng: random.Random) -> Program | None:
    """Put an exchange before a step that writes what it sends, or after its first reader."""
    places = [
        (block, n)
        for block in subject.blocks
        for n, step in enumerate(block.steps)
        if isinstance(step, Exchange)
    ]
    place = drawn(places, rng)
    if place is None:
        return None
    block, n = place
    step, program = block.steps[n], subject.program
    before = [k for k in range(n) if _depend(program, block.steps[k], step)]
    after = [k for k in range(n + 1, len(block.steps)) if _depend(program, step, block.steps[k])]
    targets = [*before[-1:], *after[:1]]
    target = drawn(targets, rng)
    if target is None:
        return None
    steps = list(block.steps)
    steps.insert(target, steps.pop(n))
    return with_steps(program, block.path, tuple(steps))
