"""Runs of a program without queues, one call each: what they need is made once and used again."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from hloipu_runtime.arguments import Watch
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.host_memory import memory_told, require_host_memory
from hloipu_runtime.simulate.participants import (
    check_host_memory,
    check_participants,
    meeting_participants,
    run_together,
)
from hloipu_runtime.simulate.replicated import Engine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from hloipu_runtime.simulate.run.kept_state import seeded
from hloipu_runtime.simulate.run.participant import ALONE, Participant
from hloipu_runtime.simulate.run.ports import given_arrays, in_order, taken_arrays

MOST_KEPT_BYTES = 1 << 27
"""Of memory that a program's idle engines may keep together: those used longest ago go first."""


class PlainRuns:
    """Runs one program again and again, in any number of threads at once."""

    def __init__(self, program: Program, names: Sequence[str], live_bytes: int) -> None:
        """Take a program, the names of its parameters and the bytes that a run may take."""
        self.program = program
        self._names = names
        self._live_bytes = live_bytes
        self._seen = seen_by_users(program)
        self._hosted: set[str] = set()
        """Modes that this host has the threads and the memory for."""
        self._idle: list[tuple[tuple[str, bool], Engine]] = []
        """Engines that no run has, behind their mode and poison, the one used last at the end."""
        self._lock = Lock()
        """Of `_idle`."""

    def require_host(self, mode: str) -> None:
        """Raise LimitError where a run takes more threads or memory than this host has."""
        if mode in self._hosted:
            return
        participants = self.program.participants
        check_participants(self.program)
        check_host_memory(self.program, participants)
        require_host_memory(self.program, mode, self._live_bytes, participants)
        self._hosted.add(mode)

    def run(
        self,
        arguments: Sequence[Sequence[object]],
        mode: str,
        counts: Counts,
        watch: Watch | None = None,
        *,
        poison: bool = False,
        seed: int = 0,
    ) -> list[list[Array]]:
        """Return the results of each participant, in the users' types.

        `arguments` are those of each, of all, or of as many neighbours each; `counts` and `watch`
        follow the first.
        """
        seen = self._seen
        ports = seen.parameters
        given = [given_arrays(ports, in_order(ports, self._names, each)) for each in arguments]
        several = self.program.participants > 1
        participants = meeting_participants(self.program) if several else [ALONE]
        share = len(participants) // len(given)
        hosts = [
            Arrays(
                seen.into_pieces(
                    seen.block_of(given[participant.number // share], participant.number)
                )
            )
            for participant in participants
        ]

        def run_one(here: Participant) -> None:
            with self._engine(mode, poison=poison, seed=seed) as engine:
                engine.here = here
                if here.number == 0:
                    engine.run(hosts[0], counts, watch)
                else:
                    engine.run(hosts[here.number], Counts(limit=counts.limit))

        with computing(), memory_told(self.program, mode, self._live_bytes):
            run_together(participants, run_one)
        outputs = seen.whole([seen.joined(host.outputs) for host in hosts])
        return [taken_arrays(seen.results, arrays) for arrays in outputs]

    @contextmanager
    def _engine(self, mode: str, *, poison: bool, seed: int) -> Iterator[Engine]:
        """Lend an engine to one run of one participant; it is not shared."""
        key = mode, poison
        engine = None if seed else self._taken(key)
        if engine is None:
            program = seeded(self.program, seed)
            exact = mode == "exact"
            engine = ExactEngine(program, poison=poison) if exact else FunctionalEngine(program)
        yield engine
        if not seed:
            self._put_back(key, engine)

    def _taken(self, key: tuple[str, bool]) -> Engine | None:
        """Return the idle engine of a mode and poison that was used last, if there is one."""
        with self._lock:
            for k in range(len(self._idle) - 1, -1, -1):
                if self._idle[k][0] == key:
                    return self._idle.pop(k)[1]
        return None

    def _put_back(self, key: tuple[str, bool], engine: Engine) -> None:
        """Keep an engine, and let go of those used longest ago until the rest fits."""
        if engine.kept_bytes > MOST_KEPT_BYTES:
            return
        with self._lock:
            self._idle.append((key, engine))
            kept_bytes = sum(idle.kept_bytes for _, idle in self._idle)
            while kept_bytes > MOST_KEPT_BYTES:
                kept_bytes -= self._idle.pop(0)[1].kept_bytes
