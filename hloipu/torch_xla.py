"""PyTorch/XLA steps as HLO text: with modules' names, all calls of a line, and what is state.

PyTorch/XLA's own dumps call parameters `p0`, `p1` and do not say which result takes the place of
which of them. Tried with torch and torch_xla 2.9.0 on the CPU; import this before torch_xla.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from hloipu.lowered_steps import LoweredStep, printed, with_aliases, with_names
from hloipu_runtime.errors import UsageError

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("XLA_HLO_DEBUG", "1")  # read when torch_xla is imported: names and lines

try:
    import torch
    import torch_xla
except ImportError as _error:
    raise UsageError(
        "E3174",
        "PyTorch/XLA is not installed",
        hint="pip install torch==2.9.0 torch_xla==2.9.0 'hloipu[jax]'; HLO text needs no PyTorch",
    ) from _error

__all__ = ["LoweredStep", "lower"]

_SEED_FACTOR, _SEED_STEP = 7012063, 1012031
"""What makes the next step's seed of this one's: pytorch/xla `xla_graph_executor.cpp`."""


def lower(
    step: Callable[..., Any],
    *arguments: Any,
    model: torch.nn.Module,
    optimizer: "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]" = (),
) -> LoweredStep:
    """Return a step as HLO text for tensors like these, with a model that is on an XLA device.

    `step` does forward and backward pass and update and returns a loss, tensors, or a tuple or
    dictionary of them; it does not wait (`torch_xla.sync`). With an optimizer it is done once
    before, so that the optimizer has its state. The model's and the optimizer's tensors that the
    step changes are state; they are left as the text begins. Raises UsageError E3179 for state that
    is not on the device, such as Adam's without `capturable=True`.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    inputs = [tensor.to(torch_xla.device()) for tensor in map(torch.as_tensor, arguments)]
    if optimizers:
        step(*inputs)
    torch_xla.sync()
    state_tensors = dict(_tensors(model, optimizers))
    _require_on_device(state_tensors)
    batch = {f"argument.{n}": tensor for n, tensor in enumerate(inputs)}
    nodes = {_nodes([tensor])[0][0]: name for name, tensor in {**state_tensors, **batch}.items()}
    with _scopes(model):
        results = _flat(step(*inputs))
    seed = torch_xla._XLAC._get_base_seed_as_tensor(str(torch_xla.device()))
    (seed_node,) = _nodes([seed])[0]
    nodes |= {torch_xla._XLAC._get_seed_info_id(): "rng_seed"}
    changed = {name: tensor for name, tensor in state_tensors.items() if _is_computed(tensor)}
    uses_seed = "rng_seed" in {nodes.get(n) for n in _nodes([*changed.values(), *results])[0]}
    if uses_seed:  # as a value that the step hands on, as PyTorch/XLA itself does
        nodes[seed_node] = "rng_seed.next"
        following = seed * _SEED_FACTOR + _SEED_STEP
        changed |= {"rng_seed": following, "rng_seed.next": following}
    listed = [*changed.values(), *results]
    numbers, tensors = _nodes(listed)
    text = printed(torch_xla._XLAC._get_xla_tensors_hlo_proto(listed))
    values = [_array(tensor) for tensor in tensors]
    torch_xla.sync()
    names = tuple(nodes.get(node, f"constant.{n}") for n, node in enumerate(numbers))
    number = {name: n for n, name in enumerate(names)}
    parameter_by_result = {
        result: number[name] for result, name in enumerate(changed) if name in number
    }

    def assign(state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, value in state.items():
                if name in state_tensors:
                    state_tensors[name].copy_(_tensor(value, state_tensors[name].dtype))
        torch_xla.sync()

    assign({name: values[number[name]] for name in changed if name in number})
    return LoweredStep(
        with_aliases(with_names(text, names), parameter_by_result),
        names,
        tuple(values),
        tuple(number[name] for name in batch if name in number),
        tuple(sorted(parameter_by_result.values())),
        assign,
    )


def _tensors(
    model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, Any]]:
    """Yield what a step may change, by name: `head.weight`, `head.weight.exp_avg`."""
    names = {}
    for name, parameter in model.named_parameters():
        names[parameter] = name
        yield name, parameter
    yield from model.named_buffers()
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                yield f"{names.get(parameter, 'parameter')}.{key}", value


def _require_on_device(state_tensors: dict[str, Any]) -> None:
    """Raise for state on the host; what is no number is left out."""
    for name, value in list(state_tensors.items()):
        on_host = isinstance(value, torch.Tensor) and value.device.type != "xla"
        if on_host or (isinstance(value, int | float) and not isinstance(value, bool)):
            raise UsageError(
                "E3179",
                f"{name!r} is not on the XLA device: the text would have its value of now for ever",
                hint="move the model there before the optimizer is made, and give optimizers that "
                "count steps capturable=True",
            )
        if not isinstance(value, torch.Tensor):
            del state_tensors[name]


def _nodes(tensors: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Return the data that tensors are computed of, in the order of the text's parameters."""
    numbers, data = torch_xla._XLAC._get_tensors_xla_device_data_node(list(tensors))
    return list(numbers), list(data)


def _is_computed(tensor: Any) -> bool:
    """Whether a tensor waits to be computed; else it is data on the device."""
    return " = " in torch_xla._XLAC._get_xla_tensors_text([tensor]).split("\n", 2)[2]


def _flat(results: Any) -> list[Any]:
    if isinstance(results, Mapping):
        results = list(results.values())
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for item in results or () for tensor in _flat(item)]


@contextmanager
def _scopes(model: torch.nn.Module) -> Iterator[None]:
    """Put the names of modules into the names of the ops of their forward passes."""
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    pushed: list[Any] = []

    def enter(module: Any, _arguments: Any) -> None:
        name = names.get(module) or type(module).__name__
        pushed.append(torch_xla._XLAC.profiler.scope_pusher(name))

    def leave(_module: Any, _arguments: Any, _result: Any) -> None:
        pushed.pop()

    hooks = torch.nn.modules.module
    entering = hooks.register_module_forward_pre_hook(enter)
    leaving = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        entering.remove()
        leaving.remove()


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type of its own
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    return tensor.numpy().copy()  # type: ignore[no-any-return]


def _tensor(value: Any, dtype: Any) -> Any:
    array = np.asarray(value)
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
