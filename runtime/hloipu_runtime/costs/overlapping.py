"""Overlap of host transfers on IO tiles with a loop's computing.

An iteration first takes what the tiles set apart have, then computes while these exchange the next
element and the last one's results with the host, and hands over its own results at its end. So one
buffer for each stream does, and an iteration takes what it hands over and the longer of the two
others. Before the first iteration its element has to come in, after the last its results have to go
out.

So it is with the positions of a pipeline, slot by slot: while a position does a micro-batch, the
element of its next one comes in, which may be the first of the next iteration of the loop around.
With a single slot, transfers have the whole iteration of that loop. IPUs of a chassis share the
lines to the host: what goes on beside the same slot or iteration is transferred one after the
other.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from hloipu_runtime.costs.spent import FREE, Spent, sum_of
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program, Role


class Transferring(NamedTuple):
    """A transfer with the host, or a barrier before one."""

    path: str
    step: s.Step
    ipu: int


class Hosted(NamedTuple):
    """What tiles set apart do for a body."""

    chassis: int
    """Of these IPUs."""
    transfers: tuple[Transferring, ...]
    handing_over: frozenset[str]
    """Paths of what goes to the other tiles, and comes from there."""


class SetApart:
    """The tiles of a program that are set apart."""

    def __init__(self, program: Program, ipus_per_chassis: int) -> None:
        self.program = program
        self.ipus_per_chassis = ipus_per_chassis

    @cached_property
    def buffers(self) -> frozenset[s.VariableId]:
        """The variables on these tiles; few of the programs that are priced are asked for them."""
        return frozenset(n for n, v in enumerate(self.program.variables) if v.role is Role.BUFFER)

    def hosted(self, body: s.Sequence, path: str) -> list[Hosted]:
        """Return what is transferred for a body, by chassis; loops and pipelines in it left out."""
        transfers: dict[int, list[Transferring]] = {}
        handing: dict[int, set[str]] = {}
        for sequence, where in _sequences(body, path) if self.buffers else ():
            before: list[tuple[str, s.Step]] = []
            for number, step in enumerate(sequence.steps):
                placed = (f"{where}/{number}", step)
                if isinstance(step, s.Sync):
                    before = [placed]
                    continue
                for ipu in self._ipus(step):
                    chassis = ipu // self.ipus_per_chassis
                    placed_on_ipu = [Transferring(*each, ipu) for each in (*before, placed)]
                    if isinstance(step, s.Exchange):
                        handing.setdefault(chassis, set()).update(
                            each.path for each in placed_on_ipu
                        )
                    else:
                        transfers.setdefault(chassis, []).extend(placed_on_ipu)
                before = []
        return [
            Hosted(chassis, tuple(transfers[chassis]), frozenset(handing.get(chassis, ())))
            for chassis in sorted(transfers)
        ]

    def pipelines(self, body: s.Sequence) -> dict[int, s.Pipeline]:
        """Return the pipelines of a body whose positions transfer, by their places in it."""
        if not self.buffers:
            return {}
        pipelines = {
            n: pipeline for n, pipeline in enumerate(body.steps) if isinstance(pipeline, s.Pipeline)
        }
        return {
            n: pipeline
            for n, pipeline in pipelines.items()
            if any(self.hosted(stage.body, "") for stage in pipeline.stages)
        }

    def _ipus(self, step: s.Step) -> list[int]:
        """Return where what a step itself transfers or hands over lies."""
        match step:
            case s.StreamIn() | s.StreamOut():
                touched = {step.variable}
            case s.Exchange():
                touched = {
                    v
                    for transfer in step.transfers
                    for v in (transfer.source, transfer.destination)
                }
            case _:
                return []
        variables = self.program.variables
        return sorted({variables[v].ipu for v in touched & self.buffers})


def longest(spent: Iterable[tuple[int, Spent]]) -> Spent:
    """Return what the chassis spends that takes longest, from what each spends in turn."""
    by_chassis: dict[int, list[Spent]] = {}
    for chassis, each in spent:
        by_chassis.setdefault(chassis, []).append(each)
    return max(
        map(sum_of, by_chassis.values()),
        key=lambda spent_by_one: spent_by_one.total.cycles,
        default=FREE,
    )


def _sequences(body: s.Sequence, path: str) -> Iterator[tuple[s.Sequence, str]]:
    """Yield a body, sequences in it, and those side by side, with their paths."""
    yield body, path
    for number, step in enumerate(body.steps):
        place = f"{path}/{number}"
        if isinstance(step, s.Sequence):
            yield from _sequences(step, place)
        elif isinstance(step, s.Parallel):
            for n, branch in enumerate(step.branches):
                yield from _sequences(branch, f"{place}|{n}")
