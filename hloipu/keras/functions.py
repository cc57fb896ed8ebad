"""The functions that Keras's loops call: they run a model's pure steps in loops on the device."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hloipu.jax import compile as compile_jax
from hloipu.keras.loops import METRICS, OPTIMIZER, SEEDS, STATISTICS, TRAINABLE, DeviceLoop
from hloipu.keras.stages import in_stages
from hloipu.training.programs import DATA
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.step_elements import elements_per_step
from hloipu_runtime.session.device import Device

import jax  # isort: skip  # its absence is told by hloipu.jax
import keras  # isort: skip  # its absence is told by hloipu.keras

_SEED = "seed_generator_state"
"""Keras's name of what a `SeedGenerator` keeps (keras-team/keras: keras/src/random/
seed_generator.py)."""
_MOST_SESSIONS = 8
"""Copies of the state that the host holds for the simulated device. *Assumed*: those of training,
evaluation and prediction, and of what is left over of each."""
Batch = Any
State = Sequence[Any]


class DroppedBatchesWarning(UserWarning):
    """Batches at the end of an epoch that are too few, or too short, for one step on the device."""


@dataclass
class Spent:
    """Cycles of executions of one kind so far."""

    executions: int = 0
    steps: int = 0
    """Of training: updates of the weights."""
    cycles: int = 0
    """Loading the executable again after another one included."""


@dataclass(frozen=True)
class Kind:
    """One of the three things that a model does, and how its steps are compiled."""

    name: str
    """`train`, `test` or `predict`."""
    groups: tuple[str, ...]
    """Of the state's lists, in order."""
    step: Callable[[State, Batch], tuple[Mapping[str, Any], State]]
    """Returns results that queues bring to the host, and the new state."""
    options: Mapping[str, Any]
    layers: Mapping[Any, int]
    """The stage of each layer that has one."""
    outfeed_mode: str = "last"
    kept: frozenset[str] = frozenset()
    """Groups that a step does not change."""
    role: Mapping[str, str] | None = None
    loops: dict[Any, DeviceLoop] = field(default_factory=dict, repr=False)
    """Those compiled, by numbers and shapes."""

    @property
    def batches_per_step(self) -> int:
        """Batches of all replicas and micro-batches."""
        return int(self.options.get("replicas", 1) * self.options.get("micro_batches", 1))


class Executor:
    """Compiles and runs the steps of one model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: Device = Device(warns=False)
        self.spent: dict[str, Spent] = {name: Spent() for name in ("train", "test", "predict")}
        self.last: dict[str, DeviceLoop] = {}
        """The loop of each kind that ran last."""
        self._with_session: list[DeviceLoop] = []
        """Loops that keep a copy of the state, the one that ran last at the end."""

    def run(self, kind: Kind, state: State, batches: Sequence[Batch]) -> tuple[DeviceLoop, State]:
        """Run batches of equal shapes as one execution; return its loop and the new state."""
        steps = len(batches) // kind.batches_per_step
        leaves, structure = jax.tree.flatten(tuple(list(part) for part in state))
        key = kind.batches_per_step, steps, _shapes(state), _shapes(batches[0])
        loop = kind.loops.get(key)
        if loop is None:
            loop = kind.loops[key] = self._compiled(kind, state, batches[0], steps)
        leaves = loop.run(
            tuple(leaves), [tuple(jax.tree.leaves(batch)) for batch in batches], kind.kept
        )
        self.last[kind.name] = loop
        self._with_session = [other for other in self._with_session if other is not loop] + [loop]
        if len(self._with_session) > _MOST_SESSIONS:
            self._with_session.pop(0).release()
        spent = self.spent[kind.name]
        spent.executions += 1
        spent.steps += steps
        spent.cycles += loop.last_run.cycles if loop.last_run else 0
        return loop, jax.tree.unflatten(structure, leaves)

    def _compiled(self, kind: Kind, state: State, batch: Batch, steps: int) -> DeviceLoop:
        variables = variables_of(self.model, kind.groups)
        groups = [
            SEEDS if variable.path.endswith(_SEED) else group
            for group, group_variables in zip(kind.groups, variables, strict=True)
            for variable in group_variables
        ]
        # Shapes alone: a program must not hold on to weights.
        shapes = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
            tuple(list(part) for part in state),
        )

        def step(state: State, data: Batch) -> Any:
            results, new = kind.step(state, data)
            # State comes first, so that results replace it in order.
            return new, results

        with in_stages(kind.layers):
            program = compile_jax(
                step, shapes, batch, donate=0, loop=steps, role=kind.role, **kind.options
            )
        batches_taken = elements_per_step(program.program.program)[DATA]
        if batches_taken != kind.batches_per_step:
            raise UsageError(
                "E3178",
                f"the IPUs given are used so that a step takes {batches_taken} batches, not "
                f"{kind.batches_per_step}",
                hint="say it: replicas=, stages= and micro_batches=, whose numbers of batches "
                "steps_per_execution has to be a multiple of",
            )
        paths = [variable.path for group_variables in variables for variable in group_variables]
        return DeviceLoop(program, groups, paths, kind.outfeed_mode, self.device)


def _shapes(nested: Any) -> Any:
    leaves, structure = jax.tree.flatten(nested)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _arrays_of_batch(batch: Batch) -> Batch:
    """Return a batch's leaves as numpy arrays of the types that JAX computes with.

    Raises UsageError E3178 for what is no dense array.
    """

    def array(leaf: Any) -> Any:
        dense = np.asarray(leaf)
        if dense.dtype == object or dense.dtype.kind in "SUM":
            raise UsageError(
                "E3178",
                f"a batch holds {type(leaf).__name__}, which is not an array of numbers",
                hint="give dense arrays: sparse ones by .todense(), texts by a layer that makes "
                "them numbers before fit",
            )
        return dense.astype(jax.dtypes.canonicalize_dtype(dense.dtype), copy=False)

    return jax.tree.map(array, batch)


def _next_batches(iterator: Iterator[Batch], most: int) -> list[Batch]:
    """Return so many batches, or what is left; raises StopIteration where nothing is."""
    batches: list[Batch] = []
    for batch in iterator:
        batches.append(_arrays_of_batch(batch))
        if len(batches) == most:
            return batches
    if not batches:
        raise StopIteration
    return batches


def _runs_of_equal_batches(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield batches one after the other that have the same shapes."""
    run: list[Batch] = []
    for batch in batches:
        if run and _shapes(run[0]) != _shapes(batch):
            yield run
            run = []
        run.append(batch)
    yield run


class _ReadsOtherState(Exception):
    """Results of metrics depend on more than the metrics' own variables."""


class _MetricsAlone(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which no variables but those of metrics can be read."""

    def get_current_value(self, ref: Any) -> Any:
        value = super().get_current_value(ref)
        if value is None:
            raise _ReadsOtherState
        return value


class _Logs:
    """Logs of a step: metric results from the state, and values that a user's step adds.

    The former are computed on the host from what all replicas have counted; the latter come from
    the device, of the last batch, as means over replicas.
    """

    def __init__(self, model: Any, groups: Sequence[str], *, is_own_step: bool) -> None:
        self._model = model
        self._groups = groups
        self._is_own_step = is_own_step
        self._names: tuple[str, ...] = ()
        self._sent: dict[str, str] = {}
        """Name of the log -> name of the result that is sent for it."""
        self._results: Callable[[Any], Any] | None = jax.jit(self._results_of_metrics)

    def sent(self, logs: Mapping[str, Any], new: State, *, replicas: int) -> dict[str, Any]:
        """Return what the device has to send, while a step is traced."""
        is_sent = self._is_own_step and replicas == 1
        known = () if is_sent else tuple(self._results_of(new))
        self._names = tuple(logs)
        self._sent = {name: f"log{number}" for number, name in enumerate(logs) if name not in known}
        return {key: logs[name] for name, key in self._sent.items()}

    def of(self, state: State, loop: DeviceLoop | None) -> dict[str, Any]:
        """Return the logs after an execution; without a loop there was none."""
        if loop is None:
            return dict(self._of_metrics(state))
        arrived = {name: rows[-1] for name, rows in loop.results().items()}
        sent = {
            name: np.mean(arrived[key], 0) if loop.replicas > 1 else arrived[key]
            for name, key in self._sent.items()
        }
        if len(sent) == len(self._names):
            return sent
        known = self._of_metrics(state)
        return {name: sent.get(name, known.get(name)) for name in self._names}

    def _of_metrics(self, state: State) -> Mapping[str, Any]:
        if self._results is not None:
            metrics = state[self._groups.index(METRICS)]
            try:
                return dict(self._results([np.asarray(leaf) for leaf in metrics]))
            except _ReadsOtherState:
                self._results = None
        return self._results_of(state)

    def _results_of_metrics(self, metrics: Sequence[Any]) -> Mapping[str, Any]:
        pairs = zip(self._model.metrics_variables, metrics, strict=True)
        with _MetricsAlone(state_mapping=list(pairs)):
            return dict(self._model.get_metrics_result())

    def _results_of(self, state: State) -> Mapping[str, Any]:
        lists = zip(variables_of(self._model, self._groups), state, strict=True)
        pairs = [
            pair for variables, values in lists for pair in zip(variables, values, strict=True)
        ]
        with keras.StatelessScope(state_mapping=pairs):
            return dict(self._model.get_metrics_result())


def variables_of(model: Any, groups: Sequence[str]) -> list[list[Any]]:
    """Return a model's variables by group, in the order of the state's leaves."""
    lists = {
        TRAINABLE: lambda: model.trainable_variables,
        STATISTICS: lambda: model.non_trainable_variables,
        OPTIMIZER: lambda: model.optimizer.variables,
        METRICS: lambda: model.metrics_variables,
    }
    return [list(lists[group]()) for group in groups]


@contextmanager
def _given_back(model: Any, groups: Sequence[str], state: State) -> Iterator[None]:
    """Restore the model's variables, which Keras has emptied, where a run fails."""
    try:
        yield
    except BaseException:
        for variables, values in zip(variables_of(model, groups), state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        raise


_OF_TRAINING = (TRAINABLE, STATISTICS, OPTIMIZER, METRICS)
_OF_TEST = (TRAINABLE, STATISTICS, METRICS)
_OF_PREDICTION = (TRAINABLE, STATISTICS)
_KEPT = frozenset({TRAINABLE})


def train_function(
    model: Any, executor: Executor, options: Mapping[str, Any], layers: Mapping[Any, int]
) -> Callable[..., Any]:
    """Return what `fit` calls: it trains the batches of one execution."""
    is_own = type(model).train_step is not keras.Model.train_step
    logs = _Logs(model, _OF_TRAINING, is_own_step=is_own)
    replicas = options.get("replicas", 1)

    def step(state: State, data: Batch) -> Any:
        logged, new = model.train_step(state, data)
        # The loss tells how to cut a step.
        loss = {"loss": logged["loss"]} if "loss" in logged else {}
        return loss | logs.sent(logged, new, replicas=replicas), new

    kind = Kind("train", _OF_TRAINING, step, options, layers)
    batches_per_step = kind.batches_per_step

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        with _given_back(model, _OF_TRAINING, state):
            loop = None
            batches = _next_batches(iterator, max(model.steps_per_execution, batches_per_step))
            left_out = 0
            for run in _runs_of_equal_batches(batches):
                batches_used = len(run) - len(run) % batches_per_step
                left_out += len(run) - batches_used
                if batches_used:
                    loop, state = executor.run(kind, state, run[:batches_used])
            if left_out:
                warnings.warn(
                    DroppedBatchesWarning(
                        f"{left_out} of the last batches are left out: a step takes "
                        f"{batches_per_step} of equal shape"
                    ),
                    stacklevel=2,
                )
            return logs.of(state, loop), state

    return function


def test_function(
    model: Any, executor: Executor, options: Mapping[str, Any], layers: Mapping[Any, int]
) -> Callable[..., Any]:
    """Return what `evaluate` calls."""
    is_own = type(model).test_step is not keras.Model.test_step
    logs = _Logs(model, _OF_TEST, is_own_step=is_own)

    def step(state: State, data: Batch) -> Any:
        logged, new = model.test_step(state, data)
        return logs.sent(logged, new, replicas=options.get("replicas", 1)), new

    # Metrics go on from batch to batch; nothing else in the state changes, or hloipu says what.
    role = {f"state/{_OF_TEST.index(METRICS)}": "carry"}
    kind = Kind("test", _OF_TEST, step, options, layers, kept=_KEPT, role=role)

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        with _given_back(model, _OF_TEST, state):
            loop = None
            for part, run in _parts(kind, _next_batches(iterator, model.steps_per_execution)):
                loop, state = executor.run(part, state, run)
            return logs.of(state, loop), state

    return function


def predict_function(
    model: Any, executor: Executor, options: Mapping[str, Any], layers: Mapping[Any, int]
) -> Callable[..., Any]:
    """Return what `predict` calls."""
    structures = []

    def step(state: State, data: Batch) -> Any:
        outputs, statistics = model.predict_step(state, data)
        leaves, structure = jax.tree.flatten(outputs)
        structures.append(structure)
        return {f"out{n}": leaf for n, leaf in enumerate(leaves)}, (state[0], statistics)

    kind = Kind("predict", _OF_PREDICTION, step, options, layers, outfeed_mode="all", kept=_KEPT)

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        state = state[:2]
        with _given_back(model, _OF_PREDICTION, state):
            outputs: dict[str, list[Any]] = {}
            for part, run in _parts(kind, _next_batches(iterator, model.steps_per_execution)):
                loop, state = executor.run(part, state, run)
                for name, elements in loop.results().items():
                    # On replicas, row r of an element is of the r-th batch of a step.
                    rows = [
                        np.concatenate(element) if loop.replicas > 1 else element
                        for element in elements
                    ]
                    outputs.setdefault(name, []).extend(rows)
            leaves = [np.concatenate(outputs[f"out{n}"]) for n in range(len(outputs))]
            return jax.tree.unflatten(structures[-1], leaves), state

    return function


def _parts(kind: Kind, batches: Sequence[Batch]) -> Iterator[tuple[Kind, list[Batch]]]:
    """Yield executions of equal batches; left-over batches run singly, on one replica."""
    ones = {name: 1 for name in ("replicas", "micro_batches") if name in kind.options}
    of_all = {name: value for name, value in kind.options.items() if name != "hosts"}
    alone = replace(kind, options={**of_all, **ones})
    for run in _runs_of_equal_batches(batches):
        batches_used = len(run) - len(run) % kind.batches_per_step
        if batches_used:
            yield kind, run[:batches_used]
        if run[batches_used:]:
            yield alone, run[batches_used:]
