"""Rebuild steps with other sequences in them."""

from collections.abc import Callable
from dataclasses import replace

from hloipu_runtime.program import steps as s

Change = Callable[[s.Sequence], s.Sequence]


def with_blocks(step: s.Step, change: Change) -> s.Step:
    """Return a step with the sequences right within it changed; the same one where none is.

    `change` is asked once for each, in order, and for a sequence itself; a call's function is not
    within it.
    """
    if isinstance(step, s.Sequence):
        return change(step)
    before = s.blocks_of(step)
    after = tuple(map(change, before))
    if all(a is b for a, b in zip(after, before, strict=True)):
        return step
    match step:
        case s.Parallel() | s.Switch():
            return replace(step, branches=after)
        case s.If():
            return replace(step, then=after[0], otherwise=after[1])
        case s.Repeat():
            return replace(step, body=after[0])
        case s.RepeatWhile():
            return replace(step, condition=after[0], body=after[1])
        case s.Pipeline():
            changed = iter(after)
            stages = tuple(
                stage._replace(
                    first=next(changed) if stage.first.steps else stage.first, body=next(changed)
                )
                for stage in step.stages
            )
            return replace(step, stages=stages)
        case _:
            return step
