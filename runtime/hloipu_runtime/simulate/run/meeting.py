"""Meeting point of participants at a collective.

Participants are numbered replica * partitions + partition.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, TypeVar

import numpy as np

from hloipu_runtime.errors import HloipuError
from hloipu_runtime.streams.per_host import Elsewhere

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class MeetingError(HloipuError):
    """Participants of a collective did not come together."""

    exit_code = 7


@dataclass
class _Table:
    """One meeting of one group."""

    operands: dict[int, list[Array]] = field(default_factory=dict)
    """By place in the group."""
    results: list[list[Array]] | None = None


class Meeting:
    """The meeting place of all participants of one evaluation.

    Nobody waits in vain: when all who have not ended wait, none of them can go on, and the meeting
    ends for everybody at once. No time limit is involved.
    """

    def __init__(self, participants: int, elsewhere: Elsewhere | None = None) -> None:
        """Make the place for so many; with others `elsewhere`, for those of this process."""
        self._elsewhere = elsewhere
        self._condition = Condition()
        self._tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self._busy = participants
        """Participants that neither wait nor have ended."""
        self._failed = False
        self._stuck = ""
        """Who waits where, once nobody can go on."""

    def attend(
        self,
        name: str,
        group: tuple[int, ...],
        me: int,
        operands: list[Array],
        compute: Callable[[list[list[Array]]], list[list[Array]]],
    ) -> list[Array]:
        """Wait until every member of `group` has come to `name`; return this member's results.

        `me` is this member's place in the group; the last to come computes for all. Raises
        MeetingError where another participant failed or will never come.
        """
        key = (name, group)
        with self._condition:
            if self._failed:
                raise self._error(name)
            table = self._tables.setdefault(key, _Table())
            table.operands[me] = operands
            if len(table.operands) < self._expected(group):
                return self._results(table, name)[me]
            del self._tables[key]  # the next round finds a new table
        here = operands_of_all = table.operands
        if self._elsewhere is not None and len(here) < len(group):
            operands_of_all = self._elsewhere.exchange(name, group, here)
        results = compute([operands_of_all[i] for i in range(len(group))])
        others = len(here) - 1
        here.clear()
        with self._condition:
            table.results = results
            self._busy += others
            self._condition.notify_all()
        return results[me]

    def _expected(self, group: tuple[int, ...]) -> int:
        """Return how many members of a group come to this place."""
        if self._elsewhere is None:
            return len(group)
        return sum(member in self._elsewhere.numbers for member in group)

    def hold(self, run: Callable[[int], T], count: int) -> list[T]:
        """Return what `run` gives for each of so many participants, all on threads of their own.

        Raises what the first one that failed raised. All others end with it: those that wait at a
        collective, and those that come to one.
        """

        def ran(number: int) -> T:
            try:
                found = run(number)
            except BaseException:
                self.fail()
                raise
            self.leave()
            return found

        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(copy_context().run, ran, n) for n in range(count)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:  # an interrupt: nobody shall wait for those who are stopped
                self.fail()
                raise
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, MeetingError)), errors[0])
        return [future.result() for future in futures]

    def leave(self) -> None:
        """Say that a participant has ended well."""
        with self._condition:
            self._one_less_busy()

    def fail(self) -> None:
        """Wake everybody up: one participant will not come any more."""
        with self._condition:
            self._failed = True
            self._condition.notify_all()

    def _results(self, table: _Table, name: str) -> list[list[Array]]:
        self._one_less_busy()
        self._condition.wait_for(lambda: self._failed or table.results is not None)
        if table.results is None:
            raise self._error(name)
        return table.results

    def _one_less_busy(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self._tables:
            places = (
                f"{name!r} ({', '.join(str(group[i]) for i in sorted(table.operands))} of "
                f"{', '.join(map(str, group))})"
                for (name, group), table in self._tables.items()
            )
            self._stuck = "; ".join(sorted(places))
            self._failed = True
            self._condition.notify_all()

    def _error(self, name: str) -> MeetingError:
        if not self._stuck:
            return MeetingError("E2010", f"collective {name!r}: another participant failed")
        return MeetingError(
            "E2011",
            f"not all participants of a collective come to it; there wait: {self._stuck}",
            hint="participants that take different branches meet different collectives",
        )
