"""Keras 3 models on the simulated device: `attach` and then `fit`, `evaluate`, `predict` as ever.

Keras's loops stay as they are, with callbacks, history and validation: they call the functions that
are put in the model's place for them (`train_function`, `test_function`, `predict_function`), which
run its pure steps on the modelled machine. Keras must compute with JAX (`KERAS_BACKEND=jax`).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hloipu.definitions import without_definitions
from hloipu.jax import JaxProgram
from hloipu.jax import compile as compile_jax
from hloipu.options.resolve import resolve
from hloipu_runtime.errors import UsageError
from hloipu_runtime.report.profile import Profile

import jax  # isort: skip  # its absence is told by hloipu.jax
from jax.experimental.xla_metadata import set_xla_metadata  # isort: skip

try:
    import keras
except ImportError as _error:
    raise UsageError(
        "E3177", "Keras is not installed", hint="pip install keras, version 3.7 or later"
    ) from _error

__all__ = ["Attached", "DroppedBatchesWarning", "attach", "detach"]

_LEAST_VERSION = (3, 7)
"""Since then training functions take the state and an iterator."""

Batch = Any
State = Sequence[Any]


class DroppedBatchesWarning(UserWarning):
    """Batches at the end of an epoch that are too few, or too short, for one step on the device."""


@dataclass
class Attached:
    """What runs a model's steps on the modelled machine, and what that took."""

    model: Any = field(repr=False)
    options: Mapping[str, Any]
    batches_per_step: int
    """Batches that one weight update takes: those of all replicas and micro-batches."""
    cycles: int = 0
    """Of the modelled machine, of all steps so far."""
    simulated_seconds: float = 0.0
    steps: int = 0
    profile: Profile | None = field(default=None, repr=False)
    """Of the last execution."""
    _programs: dict[Any, JaxProgram] = field(default_factory=dict, repr=False)

    def program(self, *, kind: str = "train") -> JaxProgram:
        """Return the program compiled last for `train`, `test` or `predict`.

        Raises UsageError E3178 where the model has not been run so yet.
        """
        programs = [program for key, program in self._programs.items() if key[0] == kind]
        if not programs:
            raise UsageError(
                "E3178",
                f"the model has run no {kind} step yet",
                hint="call fit, evaluate or predict first; programs are made for their batches",
            )
        return programs[-1]

    def compiled(self, key: Any, make: Callable[[], JaxProgram]) -> JaxProgram:
        """Return the program of a key, which is compiled at first."""
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]


def attach(
    model: Any,
    *,
    replicas: int | None = None,
    micro_batches: int | None = None,
    stages: int | Mapping[str, int] | None = None,
    **options: Any,
) -> Attached:
    """Let a compiled Keras model train, evaluate and predict on the modelled machine.

    Call it after `model.compile(…)`, and again after each further one.

        model.compile(optimizer="adam", loss="mse", steps_per_execution=8)
        on_device = hloipu.keras.attach(model, target="bow", micro_batches=4)
        history = model.fit(x, y, batch_size=16, epochs=3)
        on_device.profile.total_cycles

    The size of batches that Keras is told is that of one micro-batch on one replica: a step takes
    `replicas` * `micro_batches` of them, and updates weights by the mean of their gradients.
    `steps_per_execution` counts batches, as in Keras; it is a multiple of that product. Batches
    that are left over at the end of an epoch are left out (`DroppedBatchesWarning`).

    `stages`: pipeline stages, a number of them or the stage of each layer by name or path; layers
    without one are put where their operands are. Other options are those of `hloipu.compile`
    (`target`, `recompute`, `offload`, `reduction`, `device_map`, …); evaluation and prediction run
    on one IPU, with `target`, `set`, `over_memory` and what concerns products. Raises UsageError
    E3178 for a model that cannot be attached, and what options raise.
    """
    _require(model, micro_batches)
    steps = (replicas or 1) * (micro_batches or 1)
    if model.steps_per_execution % steps and model.steps_per_execution != 1:
        raise UsageError(
            "E3178",
            f"an execution takes {model.steps_per_execution} batches, a step {steps}",
            hint=f"compile the model with steps_per_execution={steps}, or a multiple",
        )
    training = dict(options)
    for name, value in (("replicas", replicas), ("micro_batches", micro_batches)):
        if value is not None:
            training[name] = value
    if isinstance(stages, int):
        training["stages"] = stages
    resolve("compile", without_definitions(training))
    layers = _layers_of_stages(model, stages) if isinstance(stages, Mapping) else {}
    attached = Attached(model, training, steps)
    forward = {name: value for name, value in options.items() if name in _OF_FORWARD_STEPS}
    model.train_function = _train_function(attached, layers)
    model.test_function = _test_function(attached, forward)
    model.predict_function = _predict_function(attached, forward)
    return attached


def detach(model: Any) -> None:
    """Give a model back to Keras's own functions."""
    model.train_function = model.test_function = model.predict_function = None


_OF_FORWARD_STEPS = frozenset(
    "target set over_memory code_memory available_memory_proportion partials_type outline passes "
    "plugin define cache cache_dir cache_size_bytes".split()
)


def _require(model: Any, micro_batches: int | None) -> None:
    """Raise UsageError E3178 for a model whose steps cannot be had."""
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    optimizer = getattr(model, "optimizer", None)
    faults = [
        (
            keras.backend.backend() != "jax",
            f"Keras computes with {keras.backend.backend()}",
            "set KERAS_BACKEND=jax before Keras is imported; models without tf. ops run unchanged",
        ),
        (version < _LEAST_VERSION, f"Keras is {keras.__version__}", "install 3.7 or later"),
        (
            not isinstance(model, keras.Model) or optimizer is None,
            "the model is not compiled",
            "call model.compile(optimizer=…, loss=…) first",
        ),
        (
            bool(getattr(model, "run_eagerly", False)),
            "the model runs eagerly, op by op",
            "compile it with run_eagerly=False",
        ),
        (
            bool(micro_batches and getattr(optimizer, "gradient_accumulation_steps", None)),
            "the optimizer accumulates gradients, and so would micro_batches",
            "leave out one of them",
        ),
    ]
    for is_so, message, hint in faults:
        if is_so:
            raise UsageError("E3178", message, hint=hint)


def _layers_of_stages(model: Any, stages: Mapping[str, int]) -> dict[Any, int]:
    """Return the stage of each layer; raises UsageError E3178 for layers that are not there."""
    layers = list(model._flatten_layers(include_self=False))
    by_name: dict[str, Any] = {}
    for layer in layers:
        by_name.setdefault(layer.name, layer)
        if layer.path:
            by_name[layer.path] = layer
    for name in stages:
        if name not in by_name:
            raise UsageError(
                "E3178",
                f"the model has no layer {name!r}",
                hint=f"there are {', '.join(str(name) for name in by_name)}",
            )
    return {by_name[name]: stage for name, stage in stages.items()}


@contextmanager
def _in_stages(layers: Mapping[Any, int]) -> Iterator[None]:
    """Mark the ops of layers with their stages while the block traces them."""

    def marked(call: Callable[..., Any], stage: int) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            with set_xla_metadata(ipu_stage=str(stage)):
                return call(*arguments, **named)

        return function

    with ExitStack() as stack:
        for layer, stage in layers.items():
            call = layer.call
            stack.callback(object.__setattr__, layer, "call", call)
            object.__setattr__(layer, "call", marked(call, stage))
        yield


def _arrays(nested: Any) -> Any:
    """Return leaves as numpy arrays of the types that JAX computes with."""

    def array(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)

    return jax.tree.map(array, nested)


def _key(kind: str, nested: Any, *more: Any) -> Any:
    leaves, structure = jax.tree.flatten(nested)
    return kind, structure, tuple((x.shape, x.dtype.str) for x in leaves), *more


def _next_batches(iterator: Iterator[Batch], most: int) -> list[Batch]:
    """Return so many batches, or what is left; raises StopIteration where nothing is."""
    batches: list[Batch] = []
    for batch in iterator:
        batches.append(_arrays(batch))
        if len(batches) == most:
            return batches
    if not batches:
        raise StopIteration
    return batches


def _runs_of_equal_batches(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield batches one after the other that have the same shapes."""
    run: list[Batch] = []
    for batch in batches:
        if run and _key("", run[0]) != _key("", batch):
            yield run
            run = []
        run.append(batch)
    yield run


def _train_function(attached: Attached, layers: Mapping[Any, int]) -> Callable[..., Any]:
    model, per_step = attached.model, attached.batches_per_step

    def step(state: State, data: Batch) -> Any:
        logs, new = model.train_step(state, data)
        # State comes first, so that results replace it in order; the loss tells how to cut a step.
        return new, {"loss": logs["loss"]}

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        batches = _next_batches(iterator, max(model.steps_per_execution, per_step))
        state = _arrays(tuple(list(part) for part in state))
        left_out = 0
        for run in _runs_of_equal_batches(batches):
            steps = len(run) // per_step
            left_out += len(run) - steps * per_step
            if steps:
                state = _executed(attached, layers, step, state, run[: steps * per_step])
        if left_out:
            warnings.warn(
                DroppedBatchesWarning(
                    f"{left_out} of the last batches are left out: a step takes {per_step} of "
                    "equal shape"
                ),
                stacklevel=2,
            )
        return _logs(model, state), state

    return function


def _executed(
    attached: Attached,
    layers: Mapping[Any, int],
    step: Callable[..., Any],
    state: State,
    batches: Sequence[Batch],
) -> State:
    """Run steps in a loop on the device; return the state after them."""
    steps = len(batches) // attached.batches_per_step

    def make() -> JaxProgram:
        with _in_stages(layers):
            return compile_jax(step, state, batches[0], donate=0, loop=steps, **attached.options)

    program = attached.compiled(_key("train", (state, batches[0]), steps), make)
    flat = [tuple(jax.tree.leaves(batch)) for batch in batches]
    given = dict(zip(program.lowered.parameters[0], jax.tree.leaves(state), strict=True))
    with program.program.session(state=given, infeeds={"data": flat}) as session:
        session.run(steps)
        replicas = [
            program.lowered.nested_state(session.state(n))[0]
            for n in range(program.program.program.replicas)
        ]
        attached.profile = session.profile()
    attached.steps += steps
    attached.cycles += attached.profile.lower_bound_cycles
    attached.simulated_seconds = attached.cycles / program.program.machine.chip.clock_hz
    return _joined(state, replicas)


def _joined(before: State, replicas: Sequence[State]) -> State:
    """Return one state of the replicas': weights are alike, metrics add up, statistics are means.

    Keras's metrics hold sums over samples, so that what each replica has added is added.
    """
    first = replicas[0]
    if len(replicas) == 1:
        return first
    statistics = [
        np.mean(parts, 0, dtype=parts[0].dtype) if parts[0].dtype.kind == "f" else parts[0]
        for parts in zip(*(each[1] for each in replicas), strict=True)
    ]
    metrics = [
        old + sum(part - old for part in parts)
        for old, *parts in zip(before[3], *(each[3] for each in replicas), strict=True)
    ]
    return first[0], statistics, first[2], metrics


def _logs(model: Any, state: State) -> Any:
    """Return the metrics' results as they are in a state."""
    pairs = [
        *zip(model.trainable_variables, state[0], strict=True),
        *zip(model.non_trainable_variables, state[1], strict=True),
        *zip(model.metrics_variables, state[-1], strict=True),
    ]
    with keras.StatelessScope(state_mapping=pairs):
        return model.get_metrics_result()


def _test_function(attached: Attached, options: Mapping[str, Any]) -> Callable[..., Any]:
    model = attached.model

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        state = _arrays(tuple(list(part) for part in state))
        for batch in _next_batches(iterator, model.steps_per_execution):
            state = _called(
                attached, options, "test", lambda s, d: model.test_step(s, d)[1], state, batch
            )
        return _logs(model, state), state

    return function


def _predict_function(attached: Attached, options: Mapping[str, Any]) -> Callable[..., Any]:
    model = attached.model

    def function(state: State, iterator: Iterator[Batch]) -> tuple[Any, State]:
        trainable, non_trainable = state = _arrays(tuple(list(part) for part in state[:2]))
        outputs = []
        for batch in _next_batches(iterator, model.steps_per_execution):
            output, non_trainable = _called(
                attached, options, "predict", model.predict_step, (trainable, non_trainable), batch
            )
            outputs.append(output)
        return jax.tree.map(lambda *parts: np.concatenate(parts), *outputs), (
            trainable,
            non_trainable,
            *state[2:],
        )

    return function


def _called(
    attached: Attached,
    options: Mapping[str, Any],
    kind: str,
    step: Callable[..., Any],
    state: State,
    batch: Batch,
) -> Any:
    """Run a step without a loop."""
    program = attached.compiled(
        _key(kind, (state, batch)), lambda: compile_jax(step, state, batch, **options)
    )
    result = program.program.run(*program.lowered.flat(state, batch))
    return program.lowered.nested_results(result.outputs)
