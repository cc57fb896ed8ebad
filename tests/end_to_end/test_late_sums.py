"""Gradients of divided steps are summed over devices once a batch."""

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hloipu
from hloipu.compile_request import compile_request
from hloipu.options.table import Options
from hloipu_compiler.compilation import Phase
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.ops import COLLECTIVES
from tests.support.sharded_steps import FLAT, MESH, Sharded, draws, layers

K = 2
X, Y = draws((K, 256, 16), (K, 256, 16), seed=3)
W = tuple(w * 0.5 for w in draws((16, 32), (32, 16), seed=2))
STACKS = draws((3, 16, 32), (3, 32, 16), seed=4)


def mlp_loss(w: Any, x: Any, y: Any) -> Any:
    return ((jax.numpy.tanh(x @ w[0]) @ w[1] - y) ** 2).mean()


def narrow_loss(w: Any, x: Any, y: Any) -> Any:
    half = jax.tree.map(lambda a: a.astype("bfloat16"), (w, x, y))
    return mlp_loss(*half).astype("float32")


def scanned_loss(w: Any, x: Any, y: Any) -> Any:
    return ((layers(w, x) - y) ** 2).mean()


def stepping(loss: Any) -> Any:
    def step(w: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(w, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value

    return step


def by_hand(w: Any, x: Any, y: Any) -> Any:
    """A step that goes through two micro-batches itself."""

    def taken(total: Any, batch: Any) -> Any:
        return jax.tree.map(jax.numpy.add, total, jax.grad(mlp_loss)(w, *batch)), 0

    zeros = jax.tree.map(jax.numpy.zeros_like, w)
    batches = [jax.numpy.stack([a[:128], a[128:]]) for a in (x, y)]
    batches = [jax.lax.with_sharding_constraint(a, jax.NamedSharding(FLAT, P(None, "fsdp")))
               for a in batches]  # fmt: skip
    grads, _ = jax.lax.scan(taken, zeros, tuple(batches))
    return jax.tree.map(lambda w, g: w - 0.05 * g, w, grads), mlp_loss(w, x, y)


ROWS = (P("fsdp"), P("fsdp"))
AR, RS, AG = "all-reduce", "reduce-scatter", "all-gather"
CASES: dict[str, tuple[Any, Any, Any, Any, dict[str, Any], dict[str, int], dict[str, int]]] = {
    # loss, weights, mesh, shardings, options; collectives of a micro-batch, and of others
    "data": (mlp_loss, W, FLAT, (P(), P()), {}, {AR: 1}, {AR: 1}),
    "data and model": (
        mlp_loss, W, MESH, (P(None, "model"), P("model")), {}, {AR: 2}, {AR: 1},
    ),
    "narrow": (narrow_loss, W, FLAT, (P(), P()), {}, {AR: 1}, {AR: 1}),
    "fsdp": (mlp_loss, W, FLAT, ROWS, {}, {AR: 1}, {RS: 1, AG: 1}),
    "fsdp in blocks": (
        mlp_loss, W, FLAT, ROWS, {"gather_weights": "micro-batch"}, {AR: 1, RS: 1, AG: 1}, {},
    ),
    "layers": (scanned_loss, STACKS, FLAT, (P(), P()), {}, {AR: 1}, {AR: 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.thinned(2)
def test_gradients_are_summed_once_a_batch(case: str) -> None:
    loss, weights, mesh, specs, given, each, once = CASES[case]
    rows = P(mesh.axis_names[0])
    step = Sharded(stepping(loss), (weights, X[0], Y[0]), (specs, rows, rows), mesh, (0,))
    assert collectives(step.text, Options(micro_batches=K, **given)) == (each, once)
    program = hloipu.compile(
        step.text, feed={"data": (2, 3)}, outfeed=("loss",), micro_batches=K, **given
    )
    with program.session(state=list(weights), infeeds={"data": (X, Y)}) as session:
        session.run(1)
        found = [*session.state().values()]
    grads = [jax.grad(loss)(weights, X[n], Y[n]) for n in range(K)]
    for w, new, *g in zip(weights, found, *grads, strict=True):
        # bf16 has 8 bits; partial sums over 32 rows, of the size of the largest
        near = 2e-2 if case == "narrow" else 1e-5
        change = 0.1 * np.asarray(sum(g), np.float32) / K
        np.testing.assert_allclose(w - new, change, atol=near * np.abs(change).max() + 1e-7)


def collectives(text: str, options: Options) -> tuple[Counter[str], Counter[str]]:
    """Return the collectives of a micro-batch, and those before and after the micro-batches."""
    made = compile_module(parse(text), compile_request(options), Phase.PASSES)
    each, once = Counter[str](), Counter[str]()
    for c in made.module.computations:
        counter = each if "step" in c.name else once
        counter.update(x.opcode for x in c.instructions if x.opcode in COLLECTIVES)
    return each, once


def test_a_loop_over_micro_batches_sums_once() -> None:
    step = Sharded(by_hand, (W, X[0], Y[0]), ((P(), P()), P("fsdp"), P("fsdp")), FLAT)
    program = hloipu.compile(step.text)
    for ours, theirs in zip(program.run(*step.leaves).outputs, step.results(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    made = compile_module(parse(step.text), compile_request(Options()), Phase.PASSES)
    loops = [x for c in made.module.computations for x in c.instructions if x.opcode == "while"]
    bodies = [made.module.computation[x.attributes.text("body")] for x in loops]
    assert bodies
    assert not any(x.opcode in COLLECTIVES for c in bodies for x in c.instructions)


def kept_twice(x: Any) -> Any:
    """The total is two elements of the loop's state."""

    def taken(state: Any, row: Any) -> Any:
        total = state[0] + jax.lax.psum(row, "fsdp")
        return (total, total), 0

    return jax.lax.scan(taken, (jax.numpy.zeros(3), jax.numpy.zeros(3)), x)[0]


def stacked_elsewhere(x: Any) -> Any:
    """Each device stacks from a row of its own."""

    def taken(k: Any, state: Any) -> Any:
        row, stack = state
        new = jax.lax.psum(x[k], "fsdp")[None]
        return row + 1, jax.lax.dynamic_update_slice(stack, new, (row, jax.numpy.int32(0)))

    state = jax.lax.axis_index("fsdp"), jax.numpy.zeros((10, 3))
    return jax.lax.fori_loop(0, 2, taken, state)[1]


def test_sums_stay_in_loops_where_devices_differ() -> None:
    (x,) = draws((16, 3), seed=5)
    sums = x.reshape(8, 2, 3).sum(0)
    stacks = np.zeros((8, 10, 3), np.float32)
    for device in range(8):
        stacks[device, device : device + 2] = sums
    for function, out, want in (
        (kept_twice, P(), [sums.sum(0)] * 2),
        (stacked_elsewhere, P("fsdp"), [stacks.reshape(80, 3)]),
    ):
        mapped = jax.shard_map(
            function, mesh=FLAT, in_specs=P("fsdp"), out_specs=out, check_vma=False
        )
        outputs = hloipu.compile(Sharded(mapped, (x,), (P("fsdp"),), FLAT).text).run(x).outputs
        for ours, theirs in zip(outputs, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
