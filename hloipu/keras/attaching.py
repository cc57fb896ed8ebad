"""Attach a Keras model to the modelled machine, and give it back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloipu.definitions import without_definitions
from hloipu.jax import JaxProgram
from hloipu.keras.functions import Executor, Spent, predict_function, test_function, train_function
from hloipu.keras.stages import layers_of_stages
from hloipu.options.resolve import resolve
from hloipu_runtime.errors import UsageError
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.session.device import Device

import keras  # isort: skip  # its absence is told by hloipu.keras

_LEAST_VERSION = (3, 7)
"""Since then training functions take the state and an iterator."""
_FUNCTIONS = ("train_function", "test_function", "predict_function")


@dataclass
class Attached:
    """Runs a model's steps on the modelled machine, and counts their cycles."""

    model: Any = field(repr=False)
    options: Mapping[str, Any]
    batches_per_step: int
    """Batches that one weight update takes: those of all replicas and micro-batches."""
    _executor: Executor = field(repr=False)

    @property
    def spent(self) -> Mapping[str, Spent]:
        """Executions, steps and cycles of `train`, `test` and `predict` so far."""
        return self._executor.spent

    @property
    def device(self) -> Device:
        """The device: one executable at a time lies there, and swaps of them are counted."""
        return self._executor.device

    @property
    def steps(self) -> int:
        """Updates of the weights so far."""
        return self.spent["train"].steps

    @property
    def cycles(self) -> int:
        """Cycles of the modelled machine in all training so far."""
        return self.spent["train"].cycles

    @property
    def simulated_seconds(self) -> float:
        """Simulated time of these cycles, in seconds."""
        loop = self._executor.last.get("train")
        return self.cycles / loop.program.program.machine.chip.clock_hz if loop else 0.0

    @property
    def profile(self) -> Profile | None:
        """Profile of the last execution of training; None before the first."""
        loop = self._executor.last.get("train")
        return loop.last_run.profile if loop and loop.last_run else None

    def program(self, *, kind: str = "train") -> JaxProgram:
        """Return the program that ran last for `train`, `test` or `predict`.

        Raises UsageError E3178 where the model has not been run so yet.
        """
        if kind not in self._executor.last:
            raise UsageError(
                "E3178",
                f"the model has run no {kind} step yet",
                hint="call fit, evaluate or predict first; programs are made for their batches",
            )
        return self._executor.last[kind].program


def attach(
    model: Any,
    *,
    replicas: int | None = None,
    micro_batches: int | None = None,
    stages: int | Sequence[int] | Mapping[str, int] | None = None,
    **options: Any,
) -> Attached:
    """Attach a compiled Keras model: train, evaluate and predict on the modelled machine.

        model.compile(optimizer="adam", loss="mse", steps_per_execution=8)
        on_device = hloipu.keras.attach(model, target="bow", micro_batches=4)
        history = model.fit(x, y, batch_size=16, epochs=3)
        on_device.profile.total_cycles

    The size of batches that Keras is told is that of one micro-batch on one replica: a step takes
    `replicas` * `micro_batches` of them, and updates weights by the mean of their gradients.
    `steps_per_execution` counts batches, as in Keras; it is a multiple of that product, which it
    becomes where the model is compiled with 1. Batches that are left over at the end of an epoch
    are left out of training (`DroppedBatchesWarning`). A model that is compiled again stays
    attached.

    `stages`: pipeline stages, a number of them, or the stage of each layer: in the order of
    `model.layers` without inputs, or by name or path; layers without one are put where their
    operands are. Other options are those of `hloipu.compile` (`target`, `recompute`, `offload`,
    `reduction`, `device_map`, …). Evaluation and prediction run over the same stages and replicas;
    batches that these leave over run on one replica. Raises UsageError E3178 for a model that
    cannot be attached, E3151 for options that are set here, and what options raise.
    """
    per_step = (replicas or 1) * (micro_batches or 1)
    _require(model, micro_batches)
    if model.steps_per_execution == 1:
        model.steps_per_execution = per_step
    _require_multiple(model, per_step)
    training = dict(options)
    for name, value in (("replicas", replicas), ("micro_batches", micro_batches)):
        if value is not None:
            training[name] = value
    if isinstance(stages, int):
        training["stages"] = stages
    for name in sorted(training.keys() & {"scheduler", "processes"}):
        raise UsageError(
            "E2075",
            f"{name!r}: Keras hands each batch to the device from the process of its script",
            hint="leave it out: all hosts are simulated in this process; hloipu.Trainer and "
            "hloipu.hosts.open_session train in several",
        )
    resolve("compile", without_definitions(training))
    for name in sorted(training.keys() & _OWN_OPTIONS.keys()):
        raise UsageError("E3151", f"attach sets {name!r} itself", hint=_OWN_OPTIONS[name])
    layers = layers_of_stages(model, stages)
    executor = Executor(model)
    left_out = _OF_UPDATES | (_OF_STAGES if stages is None else frozenset())
    forward = {name: value for name, value in training.items() if name not in left_out}

    def train() -> Any:
        _require(model, micro_batches)
        _require_multiple(model, per_step)
        return train_function(model, executor, training, layers)

    makers = (
        train,
        lambda: test_function(model, executor, forward, layers),
        lambda: predict_function(model, executor, forward, layers),
    )
    detach(model)
    for name, make in zip(_FUNCTIONS, makers, strict=True):
        _put_in_place(model, name, make)
    return Attached(model, training, per_step, executor)


def _put_in_place(model: Any, name: str, make: Callable[[], Any]) -> None:
    """Make Keras call what `make` returns; `model.compile` empties the place, fit fills it."""

    def in_place(force: bool = False) -> None:
        if force or getattr(model, name) is None:
            setattr(model, name, make())

    object.__setattr__(model, f"make_{name}", in_place)
    setattr(model, name, None)


def detach(model: Any) -> None:
    """Return a model to Keras's own functions, with the state that the device has now."""
    model.jax_state_sync()
    for name in _FUNCTIONS:
        if f"make_{name}" in vars(model):
            object.__delattr__(model, f"make_{name}")
        # A loop of Keras's that is going on finds a function at its place.
        getattr(model, f"make_{name}")(force=True)


_OF_UPDATES = frozenset(
    "reduction accumulator accumulator_dtype loss_output recompute offload offload_activations "
    "offload_accumulators shard_optimizer cut_at".split()
)
"""Options that say nothing of forward steps."""
_OF_STAGES = frozenset(
    "stages micro_batches schedule device_map batch_serialization offload_weights".split()
)
_OWN_OPTIONS = {
    "loop": "compile the model with steps_per_execution=N",
    "feed": "Keras's iterators feed the device",
    "outfeed": "metrics and predictions come back by Keras's own ways",
    "role": "the model's variables are the state, and its batches the data",
    "plan": "give stages, replicas and micro_batches, which say how many batches a step takes; "
    "hloipu compile --plan auto FILE tells which are best",
}


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
        (not isinstance(model, keras.Model), "this is not a Keras model", "give a keras.Model"),
        (
            bool(getattr(model, "run_eagerly", False)) or not getattr(model, "jit_compile", True),
            "the model runs eagerly, op by op",
            "compile it with run_eagerly=False and jit_compile=True",
        ),
        (
            keras.distribution.distribution() is not None,
            "Keras distributes the model over JAX's devices",
            "call keras.distribution.set_distribution(None); replicas= makes copies of the model",
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


def _require_multiple(model: Any, per_step: int) -> None:
    """Raise UsageError E3178 where an execution is no whole number of steps."""
    if model.steps_per_execution % per_step:
        raise UsageError(
            "E3178",
            f"an execution takes {model.steps_per_execution} batches, a step {per_step}",
            hint=f"compile the model with steps_per_execution={per_step}, or a multiple",
        )
