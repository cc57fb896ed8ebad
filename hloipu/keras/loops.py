"""Device loops of Keras models: resident state between executions, batches fed by a queue.

Keras hands state to each execution and takes it back. Here it takes back `DeviceArray`s, which have
types and shapes; their values are brought to the host when Keras assigns them to its variables, or
when anybody else reads them.

On several replicas weights and optimizer state are alike, as gradients are combined. Metrics hold
sums over samples, so that what each replica has added is added up; statistics that are floats are
averaged, as those of batch norms. Each replica draws random numbers from a seed of its own.
"""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from hloipu.jax import JaxProgram
from hloipu.training.programs import DATA
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.replica_keys import folded
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.session.device import Device
from hloipu_runtime.session.run_result import SessionRun
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.source import Source

import jax  # isort: skip  # its absence is told by hloipu.jax

Array = np.ndarray[Any, Any]
Leaves = tuple[Any, ...]

TRAINABLE, STATISTICS, OPTIMIZER, METRICS = "trainable", "statistics", "optimizer", "metrics"
"""Groups of a model's state: weights, what forward passes write, optimizer's, sums of metrics."""
SEEDS = "seeds"
"""Of statistics, the states of Keras's seed generators."""
DIFFERING = frozenset({STATISTICS, SEEDS, METRICS})
"""Groups that replicas change each in its own way."""


def spread(array: Array, group: str, replicas: int) -> Array:
    """Return what a session is given of a leaf: for seeds, one with a first axis of replicas."""
    if group != SEEDS or replicas == 1:
        return array
    return np.stack([folded(array, replica) for replica in range(replicas)])


def joined(parts: Sequence[Array], before: Array, group: str) -> Array:
    """Return one array of the replicas'; `before`: what all of them began with.

    Seeds go on from the first replica's, which is as it would be alone.
    """
    first, *other_replicas = parts
    if other_replicas and group == METRICS:
        return np.asarray(before + sum(part - before for part in parts), first.dtype)
    if (
        other_replicas
        and group == STATISTICS
        and jax.numpy.issubdtype(first.dtype, jax.numpy.floating)
    ):
        return np.mean(parts, 0, dtype=np.float64).astype(first.dtype)
    return first


def require_sums(
    module: Module, numbers: Sequence[int], results: Sequence[int], names: Sequence[str]
) -> None:
    """Raise UsageError E3178 unless metrics are sums, which replicas may be added up to.

    `numbers`: of the parameters that are metrics' variables, in the order of the `results` that
    replace them; `names`: of all of the state.
    """
    metrics = frozenset(numbers)
    values = _values(module, module.entry, _parameter_uses(module.entry))
    for number, result in zip(numbers, results, strict=True):
        use = values[result]
        if use.added & metrics != {number} or use.mixed & metrics:
            raise UsageError(
                "E3178",
                f"a metric keeps {names[result]}, which is not a sum over samples: what "
                "replicas have of it cannot be added up",
                hint="write metrics whose variables only have values added to them, leave that "
                "one out, or train on one replica",
            )


class _Use(NamedTuple):
    """Parameters that a value depends on."""

    added: frozenset[int]
    """It is their sum with something else."""
    mixed: frozenset[int]
    """It is made of them in any other way."""


_UNCHANGED = frozenset("copy reshape bitcast opt-barrier".split())


def _parameter_uses(entry: Computation) -> list[list[_Use]]:
    parameters = [entry.instructions[position] for position in entry.parameters]
    return [[_Use(frozenset({number}), frozenset())] for number in range(len(parameters))]


def _values(
    module: Module, computation: Computation, parameter_uses: Sequence[Sequence[_Use]]
) -> Sequence[_Use]:
    """Return what each array of a computation's result depends on, by those of its parameters."""
    uses_by_position: list[Sequence[_Use]] = []
    for instruction in computation.instructions:
        operands = [uses_by_position[position] for position in instruction.operands]
        if instruction.parameter_number >= 0:
            uses_by_position.append(parameter_uses[instruction.parameter_number])
        elif instruction.opcode == "tuple":
            uses_by_position.append([use for uses in operands for use in uses])
        elif instruction.opcode == "get-tuple-element":
            uses_by_position.append(_element(computation, instruction, operands[0]))
        elif instruction.opcode == "call":
            called = module.computation[instruction.attributes.called[0]]
            uses_by_position.append(_values(module, called, operands))
        else:
            uses_by_position.append([_of_op(instruction, operands)] * _leaves(instruction.shape))
    return uses_by_position[computation.root]


def _element(
    computation: Computation, instruction: Instruction, uses: Sequence[_Use]
) -> Sequence[_Use]:
    tuple_shape = computation.instructions[instruction.operands[0]].shape
    index = instruction.attributes.integer("index")
    before = tuple_shape.elements[:index] if isinstance(tuple_shape, TupleShape) else ()
    first = sum(map(_leaves, before))
    return uses[first : first + _leaves(instruction.shape)]


def _of_op(instruction: Instruction, operands: Sequence[Sequence[_Use]]) -> _Use:
    uses = [use for operand_uses in operands for use in operand_uses]
    added = frozenset[int]().union(*(use.added for use in uses))
    mixed = frozenset[int]().union(*(use.mixed for use in uses))
    if instruction.opcode in _UNCHANGED or instruction.opcode == "add":
        twice = {n for n in added if sum(n in use.added for use in uses) > 1}
        return _Use(added - twice, mixed | twice)
    return _Use(frozenset(), mixed | added)


def _leaves(shape: Shape | None) -> int:
    return sum(map(_leaves, shape.elements)) if isinstance(shape, TupleShape) else 1


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
