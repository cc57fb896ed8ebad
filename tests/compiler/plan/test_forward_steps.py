"""Steps that nobody describes: what of a forward step is data, and which steps may train.

Functions of JAX whose names are taken from the text, so that the graph alone tells.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hloipu
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest
from hloipu_runtime.errors import UsageError

Function = Callable[..., Any]


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def words(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def unnamed(function: Function, shapes: list[Any]) -> Module:
    """Return a function's module without metadata, its parameters named by number."""
    lowered = jax.jit(function, keep_unused=True).lower(*shapes)
    text = re.sub(r", metadata=\{[^}]*\}", "", lowered.compiler_ir("hlo").as_hlo_text())
    for name, number in re.findall(r"([\w.]+) = \S+ parameter\((\d+)\)", text.split("ENTRY")[1]):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", f"Arg_{number}.1", text)
    return hloipu.verify(text)


def read(module: Module, *, cut: bool, **asked: Any) -> Wrapping:
    return required_wrapping(module, WrappingRequest(2, **asked), feeds_rest=cut)


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    return jax.nn.relu(x @ w + b) @ v


def torch_mlp(w: Any, b: Any, v: Any, c: Any, x: Any) -> Any:
    return jax.nn.relu(x @ w.T + b) @ v.T + c


def conv(k: Any, w: Any, x: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims)
    return made.mean((1, 2)) @ w


def attention(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k)), v)


def decode(w: Any, cache: Any, x: Any, at: Any) -> Any:
    new = jax.lax.dynamic_update_slice(cache, (x @ w)[:, None], (0, at, 0))
    return jnp.einsum("btd,bd->bt", new, x), new


MLP = [floats(8, 16), floats(16), floats(16, 4)]
TORCH = [floats(16, 8), floats(16), floats(4, 16), floats(4)]
HEADS = [floats(1, 3, 6, 4)] * 3
FORWARD: dict[str, tuple[Function, list[Any], tuple[int, ...], list[int]]] = {
    "data last": (lambda w, b, v, x: mlp(x, w, b, v), [*MLP, floats(32, 8)], (3,), []),
    "data first": (mlp, [floats(32, 8), *MLP], (0,), []),
    "a batch of one": (mlp, [floats(1, 8), *MLP], (0,), []),
    "weights as PyTorch has them": (torch_mlp, [*TORCH, floats(32, 8)], (4,), []),
    "one sample, like a bias its output": (torch_mlp, [*TORCH, floats(8)], (4,), []),
    "words": (lambda t, w, ids: t[ids] @ w, [floats(90, 8), floats(8, 90), words(1, 7)], (2,), []),
    "an image": (conv, [floats(3, 3, 3, 8), floats(8, 10), floats(1, 16, 16, 3)], (2,), []),
    "heads": (attention, HEADS, (0, 1, 2), []),
    "a mask": (lambda w, x, m: (x * m[:, None]) @ w, [floats(8, 4), floats(6, 8), floats(6)],
               (1, 2), []),
    "a loss alone": (lambda w, x, y: ((x @ w - y) ** 2).mean(),
                     [floats(8, 4), floats(6, 8), floats(6, 4)], (1, 2), []),
    "a cache": (decode, [floats(8, 8), floats(4, 10, 8), floats(4, 8), words()], (2,), [1]),
}  # fmt: skip


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("case", FORWARD)
def test_the_graph_tells_data_of_a_forward_step(case: str, cut: bool) -> None:
    function, shapes, data, kept = FORWARD[case]
    module = unnamed(function, shapes)
    found = read(module, cut=cut)
    assert [feed.places for feed in found.feeds] == [data]
    assert [pair.parameter for pair in found.state] == kept
    assert len(found.constants) == len(shapes) - len(data) - len(kept)
    (line,) = (line for line in found.lines() if "taken for data" in line)
    assert f"Arg_{data[0]}.1" in line
    assert "--role" in line
    # What the user names is all the data there is; the rest is loaded once.
    named = read(module, cut=cut, feeds={"mine": (data[0],)})
    assert [feed.places for feed in named.feeds] == [(data[0],)]
    assert not named.assumed


def loss(weights: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()


def descent(x: Any, y: Any, *weights: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return tuple(w - 0.1 * g for w, g in zip(weights, gradients, strict=True)), value


def adam(x: Any, y: Any, w: Any, m: Any, v: Any) -> Any:
    g = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - m / jnp.sqrt(v), m, v


DATA = [floats(6, 8), floats(6, 4)]
WEIGHTS = [floats(8, 5), floats(5, 4)]
TRAINING: dict[str, tuple[Function, list[Any]]] = {
    "descent": (descent, [*DATA, *WEIGHTS]),
    "descent without its loss": (lambda *x: descent(*x)[0], [*DATA, *WEIGHTS]),
    "gradients": (lambda x, y, *w: jax.grad(loss)(w, x, y), [*DATA, *WEIGHTS]),
    "one gradient": (lambda x, y, w: x.T @ (x @ w - y), [*DATA, floats(8, 4)]),
    "Adam": (adam, [*DATA, *[floats(8, 4)] * 3]),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("case", TRAINING)
def test_what_may_train_is_never_read_as_forward(case: str, cut: bool) -> None:
    """Neither from the graph alone nor with names, where the data comes first."""
    function, shapes = TRAINING[case]
    lowered = jax.jit(function, keep_unused=True).lower(*shapes)
    named = hloipu.verify(lowered.compiler_ir("hlo").as_hlo_module().to_string())
    for module in (unnamed(function, shapes), named):
        with pytest.raises(UsageError, match="it may train") as caught:
            read(module, cut=cut)
        assert caught.value.code == "E3150"
        assert "--role" in caught.value.hint
    roles = {str(n): "data" if n < 2 else "const" for n in range(len(shapes))}
    assert not read(named, cut=cut, roles=roles).state  # said to be no weights
