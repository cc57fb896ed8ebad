"""Pipeline schedules, and their stages, stashes and bubbles.

A pipeline of S stages has positions: in training the forward stages and then the backward ones,
last stage first, so 2S of them; in inference the S forward ones. `grouped` starts a micro-batch in
every slot, `interleaved` in every second one, so that no IPU has a forward and a backward stage in
one slot, `sequential` when the one before is through (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/tools/pipeline_util.cc). Counts there must be multiples of
the stages because ramps and steady state share code; the schedule itself takes any count.
"""

from collections.abc import Sequence

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.timetable import Timetable

GROUPED, INTERLEAVED, SEQUENTIAL = "grouped", "interleaved", "sequential"
SCHEDULES = (GROUPED, INTERLEAVED, SEQUENTIAL)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One pipeline's order of work."""

    stages: int
    kind: str
    """One of `SCHEDULES`."""
    micro_batches: int
    trains: bool = True
    """Whether there are backward stages."""
    group: int = 1
    """Micro-batches that a position does before the next one does, where it is sequential."""

    @property
    def positions(self) -> int:
        """Forward stages, and in training backward ones."""
        return 2 * self.stages if self.trains else self.stages

    @property
    def interval(self) -> int:
        """Slots from one micro-batch to the next."""
        if self.kind == SEQUENTIAL:
            return self.positions
        return 2 if self.kind == INTERLEAVED and self.trains else 1

    @property
    def timetable(self) -> Timetable:
        """The slots."""
        return Timetable(self.positions, self.interval, self.micro_batches, self.group)

    def stage_of(self, position: int) -> int:
        """Return the stage of a position."""
        return position if position < self.stages else 2 * self.stages - 1 - position

    def name_of(self, position: int) -> str:
        """Return `F0`, `B3` and the like."""
        return f"{'F' if position < self.stages else 'B'}{self.stage_of(position)}"

    def stash_depth(self, stage: int) -> int:
        """Return how many micro-batches of a stage's activations wait, beside the one at work."""
        if not self.trains:
            return 0
        return self.timetable.micro_batches_waiting(stage, 2 * self.stages - 1 - stage) - 1

    def span(self, cycles: Sequence[int], ipus: Sequence[int]) -> int:
        """Return the cycles of all slots: of each, those of its slowest IPU.

        `cycles`: of each position; `ipus`: of each stage.
        """
        return self.timetable.span(
            cycles, [ipus[self.stage_of(position)] for position in range(self.positions)]
        )
