"""Steps that update nothing: outputs that only look like state, and caches that are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hloipu
from hloipu_compiler.plan.roles import carried_of, required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest

WIDTH, ROWS, LENGTH = 4, 3, 5
BLOCK = """HloModule block
ENTRY e {
  x = f32[3,4] parameter(0)
  w = f32[4,4] parameter(1)
  v = f32[4,4] parameter(2)
  y = f32[3,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}METADATA
  t = f32[3,4] tanh(y)
  OUT
  ROOT r = (f32[3,4]) tuple(out)
}"""
SKIP = """z = f32[3,4] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  out = f32[3,4] add(x, z)"""
PLAIN = "out = f32[3,4] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
NAMED = ', metadata={op_name="jit(block)/dot_general"}'
BACKWARD = ', metadata={op_name="jit(block)/transpose(jvp())/dot_general"}'


def block(out: str, metadata: str = "") -> str:
    return BLOCK.replace("OUT", out).replace("METADATA", metadata)


def wrapped(text: str, **asked: tuple[int, ...]) -> Wrapping:
    request = WrappingRequest(1, feeds=asked)
    return required_wrapping(hloipu.verify(text), request, feeds_rest=True)


@pytest.mark.parametrize("text", [block(PLAIN), block(SKIP, NAMED), block(SKIP)])
def test_an_output_of_its_input_s_shape_is_no_state(text: str) -> None:
    found = wrapped(text, data=(0,))
    assert not found.state
    assert found.constants == (1, 2)


def test_a_sum_with_a_parameter_is_state_where_nothing_else_tells() -> None:
    assert wrapped(block(SKIP)).state
    assert wrapped(block(SKIP, BACKWARD)).state


def test_without_names_the_batch_tells_data_where_an_output_looks_like_state() -> None:
    found = wrapped(block(PLAIN))
    assert [x.places for x in found.feeds] == [(0,)]
    assert (found.state, found.constants) == ((), (1, 2))


def decode(cache: dict[str, jax.Array], weights: dict[str, jax.Array], x: jax.Array) -> object:
    """Attend to earlier rows, which are written into caches in two ways."""
    at = cache["at"]
    keys = cache["keys"].at[:, at].set(x @ weights["k"])
    values = lax.dynamic_update_slice(cache["values"], (x @ weights["v"])[:, None], (0, at, 0))
    scores = jnp.where(jnp.arange(LENGTH) <= at, jnp.einsum("bd,btd->bt", x, keys), -1e9)
    out = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values)
    return {"at": at + 1, "keys": keys, "values": values}, x + out


def test_caches_are_written_by_one_micro_batch_after_the_other() -> None:
    draw = np.random.default_rng(0)
    shape = ROWS, LENGTH, WIDTH
    cache = {"at": np.int32(0), "keys": np.zeros(shape, np.float32),
             "values": np.zeros(shape, np.float32)}  # fmt: skip
    weights = {k: draw.normal(size=(WIDTH, WIDTH)).astype(np.float32) for k in "kv"}
    inputs = draw.normal(size=(4, ROWS, WIDTH)).astype(np.float32)
    step = jax.jit(decode, donate_argnums=0)
    lowered = step.lower(cache, weights, inputs[0])
    text = str(lowered.compiler_ir("hlo").as_hlo_module().to_string())
    assert carried_of(hloipu.verify(text), WrappingRequest(1)) == (
        frozenset(),
        frozenset({0, 1, 2}),
    )
    program = hloipu.compile(text, target="tiny", micro_batches=2, loop=2, cache=False)
    state = [np.asarray(x) for x in jax.tree.leaves(cache)]
    constants = {3: weights["k"], 4: weights["v"]}
    feed = {"data": iter([(x,) for x in inputs])}
    with program.session(state=state, infeeds=feed, constants=constants) as session:
        session.run(2)
        found = [x.element for x in session.stream("result.3").drain()]
        kept = list(session.state().values())
    for x, mine in zip(inputs, found, strict=True):
        cache, theirs = jax.jit(decode)(cache, weights, x)
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)
    for mine, theirs in zip(kept, jax.tree.leaves(cache), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


SPARSE = """HloModule sparse, input_output_alias={ {0}: (0, {}, must-alias) }
ENTRY e {
  w = f32[5,2] parameter(0)
  at = s32[] parameter(1)
  x = f32[1,2] parameter(2)
  nought = s32[] constant(0)
  row = f32[1,2] dynamic-slice(w, at, nought), dynamic_slice_sizes={1,2}
  new = f32[1,2] VALUE
  out = f32[5,2] dynamic-update-slice(w, new, at, nought)
  ROOT r = (f32[5,2]) tuple(out)
}"""


def test_rows_that_are_computed_from_the_old_ones_are_no_cache() -> None:
    cache = hloipu.verify(SPARSE.replace("VALUE", "negate(x)"))
    weight = hloipu.verify(SPARSE.replace("VALUE", "subtract(row, x)"))
    assert carried_of(cache, WrappingRequest(1)) == (frozenset(), frozenset({0}))
    assert carried_of(weight, WrappingRequest(1)) == (frozenset(), frozenset())
