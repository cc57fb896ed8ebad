"""Engines of all participants, seen as one engine."""

from collections.abc import Mapping, Sequence

import numpy as np

from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.participants import meeting_participants, run_together
from hloipu_runtime.simulate.run.host import Counts, Host
from hloipu_runtime.simulate.run.kept_state import Moment
from hloipu_runtime.simulate.run.participant import Participant
from hloipu_runtime.streams.per_host import Elsewhere

Engine = FunctionalEngine | ExactEngine


class ReplicatedEngine:
    """Engines of all participants, numbered replica * partitions + partition.

    Each has state of its own. Between runs none is ahead of another.
    """

    def __init__(
        self, program: Program, engines: Sequence[Engine], elsewhere: Elsewhere | None = None
    ) -> None:
        """Take the engines of all, or of those that are here where others are `elsewhere`."""
        self.program = program
        self.elsewhere = elsewhere
        self.engines = tuple(engines)
        self.hosts: tuple[Host, ...] = ()
        """Of the participants, in place of the one that comes with a run."""
        self.counts: list[Counts] = []
        """Of the last run, by participant."""

    @property
    def state(self) -> dict[str, Array]:
        """The state of the first participant; assigned to, it becomes the state of all."""
        return self.engines[0].state

    @state.setter
    def state(self, arrays: Mapping[str, Array]) -> None:
        for number, engine in enumerate(self.engines):
            # Each engine holds its state alone, and overwrites it.
            engine.state = {k: np.array(x) if number else x for k, x in arrays.items()}

    @property
    def states(self) -> list[dict[str, Array]]:
        """The state of each participant."""
        return [engine.state for engine in self.engines]

    @states.setter
    def states(self, arrays: Sequence[Mapping[str, Array]]) -> None:
        for engine, mine in zip(self.engines, arrays, strict=True):
            engine.state = dict(mine)

    @property
    def moments(self) -> list[Moment]:
        """Of the last run, the moment that each participant's state is of."""
        return [
            engine.kept_moment if isinstance(engine, FunctionalEngine) else "lost"
            for engine in self.engines
        ]

    def run(self, host: Host, counts: Counts) -> Counts:
        """Run all participants once, the first with these counts.

        Raises what the first one that failed raised; the others have ended, too.
        """
        hosts = self.hosts or (host,) * len(self.engines)
        self.counts = [counts, *(Counts(limit=counts.limit) for _ in self.engines[1:])]

        first = 0 if self.elsewhere is None else self.elsewhere.numbers.start

        def run_one(here: Participant) -> None:
            place = here.number - first
            engine = self.engines[place]
            engine.here = here
            engine.run(hosts[place], self.counts[place])

        run_together(meeting_participants(self.program, self.elsewhere), run_one)
        return counts
