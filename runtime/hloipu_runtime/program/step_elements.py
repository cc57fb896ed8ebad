"""Elements that a step takes from each infeed and gives to each outfeed."""

from collections.abc import Iterator, Mapping

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program


def elements_per_step(program: Program) -> Mapping[str, int]:
    """Return the elements of each queue that a step moves.

    Of a queue within a pipeline that is one for each micro-batch. Each replica takes elements of
    its own; what they give is one element together.
    """
    times: dict[str, int] = {}
    for stream, count in _streams(program.body, 1):
        times[stream] = count
    elements_by_queue = {}
    for queue in program.queues:
        counts = [times[port.stream] for port in queue.streams if port.stream in times]
        replicas = program.replicas if queue.to_device else 1
        elements_by_queue[queue.name] = max(counts, default=1) * replicas
    return elements_by_queue


def takes_alike(program: Program) -> bool:
    """Whether all steps take the same number of elements of each infeed, whatever data says."""
    infeed_streams = {
        port.stream for queue in program.queues if queue.to_device for port in queue.streams
    }
    return not infeed_streams & frozenset(_inner_streams(program, program.body, 0))


def _inner_streams(program: Program, step: s.Step, loops: int) -> Iterator[str]:
    """Yield the streams that stand in a branch, or in a loop within the one around the step."""
    match step:
        case s.StreamIn():
            if loops > 1:
                yield step.stream
        case s.Call():
            yield from _inner_streams(program, program.functions[step.function], loops)
        case _:
            deeper = {s.Repeat: loops + 1, s.RepeatWhile: 2, s.If: 2, s.Switch: 2}.get(
                type(step), loops
            )
            for inner in s.inner_steps(step):
                yield from _inner_streams(program, inner, deeper)


def _streams(step: s.Step, times: int) -> Iterator[tuple[str, int]]:
    match step:
        case s.Sequence():
            for inner in step.steps:
                yield from _streams(inner, times)
        case s.Repeat():
            yield from _streams(step.body, times)
        case s.Pipeline():
            for stage in step.stages:
                yield from _streams(stage.body, times * step.count)
        case s.StreamIn() | s.StreamOut():
            yield step.stream, times
