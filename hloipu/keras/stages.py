"""Pipeline stages of a model's layers: found by name, marked while a step is traced."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hloipu_runtime.errors import UsageError

import keras  # isort: skip  # its absence is told by hloipu.keras
from jax.experimental.xla_metadata import set_xla_metadata  # isort: skip


def layers_of_stages(
    model: Any, stages: int | Sequence[int] | Mapping[str, int] | None
) -> dict[Any, int]:
    """Return the stage of each layer that has one.

    `stages`: by name or path, or one for each of `model.layers` but inputs; a number of stages
    names none. Raises UsageError E3178 for layers that are not there, or too few stages.
    """
    if stages is None or isinstance(stages, int):
        return {}
    if not isinstance(stages, Mapping):
        layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
        if len(layers) != len(stages):
            raise UsageError(
                "E3178",
                f"{len(stages)} stages are given for {len(layers)} layers",
                hint=f"give one for each of {', '.join(layer.name for layer in layers)}",
            )
        return dict(zip(layers, stages, strict=True))
    by_name: dict[str, Any] = {}
    for layer in model._flatten_layers(include_self=False):
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
def in_stages(layers: Mapping[Any, int]) -> Iterator[None]:
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
