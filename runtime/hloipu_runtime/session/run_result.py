"""What runs gave: of a plain program, of a session, and of one call of a program with state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Port, Program
from hloipu_runtime.report.profile import Profile

if TYPE_CHECKING:
    from hloipu_runtime.report.ports import ArrayPort
    from hloipu_runtime.session.session import Session

_MOST_SHOWN = 20
"""Arrays of a result that a notebook lists."""


@dataclass(frozen=True)
class _Profiled:
    """What ran, and what it cost, which is found when it is asked for: it may cost more itself."""

    _profile: Callable[[], Profile] = field(repr=False)

    @cached_property
    def profile(self) -> Profile:
        """Where the cycles went."""
        return self._profile()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: the profile itself."""
        return {**self.__dict__, "profile": self.profile, "_profile": None}


@dataclass(frozen=True)
class SessionRun(_Profiled):
    """What one call of `Session.run` gave."""

    steps: int
    outputs: list[Any]
    """Results that no queue takes, of the last step."""
    cycles: int


@dataclass(frozen=True)
class RunResult(_Profiled):
    """What one run gave."""

    outputs: list[Any]
    """Arrays in the order of the result's leaves, in the user's types: of the first participant."""
    everyone: list[list[Any]] = field(repr=False)
    """The outputs of all participants, numbered replica * partitions + partition."""

    @property
    def cycles(self) -> int:
        """Of the modelled machine."""
        return self.profile.lower_bound_cycles

    def __repr__(self) -> str:
        """Return how many arrays there are, and the cycles."""
        return f"<RunResult: {len(self.outputs)} arrays, {self.cycles:,} cycles>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: where the cycles went, and the arrays."""
        from hloipu_runtime.report.overview import overview_html
        from hloipu_runtime.report.ports import html_table

        arrays = [
            (f"output {n}", f"{np.asarray(array).dtype}{list(np.shape(array))}")
            for n, array in enumerate(self.outputs[:_MOST_SHOWN])
        ]
        left_out = len(self.outputs) - len(arrays)
        more = [("…", f"{left_out} more")] if left_out else []
        device = ("device cycles", f"{self.profile.device_cycles:,}")
        facts = [("cycles", f"{self.cycles:,}"), device, *arrays, *more]
        return html_table("run", facts) + overview_html(self.profile)


def begun_with(
    inputs: "Sequence[ArrayPort]", names: Sequence[str], arguments: Sequence[Any]
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return arguments in entry order as a session takes them: state and constants, by number.

    `inputs` say which are which. Raises UsageError E3141 for another number of arrays, E3154 as
    `in_order` does.
    """
    from hloipu_runtime.simulate.run.ports import flat_arrays, in_order

    ports = [Port(f"parameter.{port.number}", port.dtype.name, port.shape) for port in inputs]
    arrays = flat_arrays(ports, in_order(ports, names, arguments))
    pairs = list(zip(inputs, arrays, strict=True))
    state = {port.number: array for port, array in pairs if port.role == "state"}
    return state, {port.number: array for port, array in pairs if port.role != "state"}


def one_run(session: "Session", outputs: "Sequence[ArrayPort]", progress: Any) -> RunResult:
    """Run a session's program once; state and last results are in the order of the results."""
    ran = session.run(progress=progress)
    state = session.state()
    rest = iter(ran.outputs)
    arrays = [state[port.name] if port.role == "state" else next(rest) for port in outputs]
    return RunResult(lambda: ran.profile, arrays, [arrays])


def require_no_queues(program: Program, watch: Any, each: Sequence[Any]) -> None:
    """Raise UsageError E3159 for a program with state that one call cannot run, or not so."""
    if program.queues:
        why = f"has queues, {program.queues[0].name!r} first"
    elif program.participants > 1 and program.partitioning is None:
        why = f"keeps state on {program.participants} participants"
    elif watch is not None or each:
        why = "keeps state on the device, where neither watch= nor each= reaches"
    else:
        return
    raise UsageError(
        "E3159",
        f"{program.name!r} {why}",
        hint="run it in a session: program.session(state=…, infeeds=…)",
    )
