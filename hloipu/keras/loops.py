"""Device loops: resident state between executions, batches fed by a queue.

Keras hands state to each execution and takes it back. Here it takes back `DeviceArray`s, which have
types and shapes; their values are brought to the host when Keras assigns them to its variables, or
when anybody else reads them.
"""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np

from hloipu.jax import JaxProgram
from hloipu.keras.replicas import DIFFERING, METRICS, joined, require_sums, spread
from hloipu.training.programs import DATA
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.device import Device
from hloipu_runtime.session.run_result import SessionRun
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.source import Source

import jax  # isort: skip  # its absence is told by hloipu.jax

Array = np.ndarray[Any, Any]
Leaves = tuple[Any, ...]


class DeviceArray:
    """An array of a model's state that is on the simulated device.

    Reading its value brings its whole group from the device, once. Raises UsageError E3178 where
    the device has done steps since: as a donated array of JAX, it is there no more.
    """

    def __init__(self, moment: "Moment", number: int, like: Array) -> None:
        self._moment = moment
        self._number = number
        self.shape: tuple[int, ...] = like.shape
        self.dtype: np.dtype[Any] = like.dtype
        self.ndim: int = like.ndim
        self.size: int = like.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._moment.array(self._number), dtype, copy=copy)

    def __jax_array__(self) -> Any:
        return jax.numpy.asarray(self._moment.array(self._number))

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype})"


@dataclass
class Moment:
    """The state between two executions, brought from the device group by group, on demand."""

    session: Session | None
    """None: the device has done steps since."""
    names: Sequence[str]
    """Of all leaves, in the program."""
    groups: Sequence[str]
    begun: Sequence[Array]
    """What the host gave the device last."""
    _arrays: dict[int, Array] = field(default_factory=dict)

    def array(self, number: int) -> Array:
        """Return the value of a leaf."""
        if number not in self._arrays:
            if self.session is None:
                raise UsageError(
                    "E3178",
                    "this array was on the device, which has done steps since",
                    hint="call model.jax_state_sync() in the callback, and read the variables",
                )
            self._arrays |= self._group(self.session, self.groups[number])
        return self._arrays[number]

    def _group(self, session: Session, group: str) -> dict[int, Array]:
        numbers = [n for n, name in enumerate(self.groups) if name == group]
        names = [self.names[n] for n in numbers]
        replicas = session.program.replicas if group in DIFFERING else 1
        states = [session.state(replica, names=names) for replica in range(replicas)]
        return {
            n: joined([state[name] for state in states], self.begun[n], group)
            for n, name in zip(numbers, names, strict=True)
        }


class _Handed(Source):
    """The batches of the next execution, which the device's queue takes without a thread."""

    quick = True

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()

    def elements(self, skip: int = 0) -> Iterator[Any]:
        """Return an iterator that goes on when more batches are handed to it."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()


class DeviceLoop:
    """A step compiled for a number of iterations, and the session that keeps its state."""

    def __init__(
        self,
        program: JaxProgram,
        groups: Sequence[str],
        paths: Sequence[str],
        outfeed_mode: str,
        device: Device,
    ) -> None:
        """Take a program in a loop, whose first argument is the state and whose second is data.

        `groups` has the group of each leaf of the state, `paths` its name in Keras; `outfeed_mode`
        is that of all queues. Raises UsageError E3178 where metrics of replicas cannot be joined.
        """
        self.program = program
        self.groups = groups
        self.replicas: int = program.program.program.replicas
        self.last_run: SessionRun | None = None
        names = {array.number: array.name for array in parameter_arrays(program.lowered.module)}
        self._names = [names[number] for number in program.lowered.parameters[0]]
        queues = seen_by_users(program.program.program).queues
        if self.replicas > 1:
            metrics = [n for n, group in enumerate(groups) if group == METRICS]
            parameters = [program.lowered.parameters[0][n] for n in metrics]
            require_sums(program.lowered.module, parameters, metrics, paths)
        self._outfeeds = {queue.name: outfeed_mode for queue in queues if not queue.to_device}
        self._device = device
        self._session: Session | None = None
        self._batches = _Handed()
        self._leaves: Leaves = ()
        """What Keras has for the state that is on the device now."""
        self._moment: Moment | None = None

    def run(
        self, leaves: Leaves, batches: Sequence[Leaves], unchanged_groups: Container[str]
    ) -> Leaves:
        """Run one execution; return its new state.

        `leaves` are arrays, or what the last execution returned: that is on the device already.
        The step changes none of `unchanged_groups`: what is given is returned.
        """
        session, begun = self._with_state(leaves)
        self._batches.waiting.extend(batches)
        try:
            self.last_run = session.run()
        except BaseException:
            # The state of the last whole step can still be read; the next run needs a new session.
            self._session, self._leaves, self._batches = None, (), _Handed()
            raise
        if self._moment is not None:
            self._moment.session = None
        moment = self._moment = Moment(session, self._names, self.groups, begun)
        self._leaves = tuple(
            leaf if group in unchanged_groups else DeviceArray(moment, number, leaf)
            for number, (leaf, group) in enumerate(zip(leaves, self.groups, strict=True))
        )
        return self._leaves

    def release(self) -> None:
        """Close the session and its copy of the state; returned arrays stay readable."""
        self._session, self._leaves, self._moment = None, (), None

    def results(self) -> dict[str, list[Any]]:
        """Return what has come from the device since the last call: all elements of each result.

        With several replicas an element has one row of each.
        """
        session = self._session
        if session is None:
            return {}
        return {n: [arrived.element for arrived in session.arrived(n)] for n in self._outfeeds}

    def _with_state(self, leaves: Leaves) -> tuple[Session, Sequence[Array]]:
        session, moment = self._session, self._moment
        is_here = len(leaves) == len(self._leaves) and all(map(is_, leaves, self._leaves))
        if session is not None and moment is not None and is_here:
            return session, moment.begun
        begun = [np.asarray(leaf) for leaf in leaves]
        state = {
            name: spread(array, group, self.replicas)
            for name, array, group in zip(self._names, begun, self.groups, strict=True)
        }
        if session is not None:
            if moment is not None:
                moment.session = None
            session.give_state(state)
        else:
            session = self._session = self.program.program.session(
                state=state,
                infeeds={DATA: self._batches},
                outfeeds=self._outfeeds,
                device=self._device,
            )
        return session, begun
