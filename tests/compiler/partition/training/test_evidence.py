"""What a step is taken for is said, and refused where the signs conflict."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import hloipu
from hloipu_runtime.errors import HloipuError
from tests.support.training_models import USUAL
from tests.support.training_steps import STEPS, Step

_MLP = USUAL[0]


def lines(text: str, **options: Any) -> list[str]:
    """Return how a step is cut, as it is told to people."""
    program = hloipu.compile(text, target="tiny", cache=False, over_memory="allow", **options)
    return list(program.options["cut"])


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (optax.sgd(0.1), "gradient descent"),
        (optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1)),
         "gradient descent with weight decay"),
        (optax.sgd(0.1, momentum=0.9), "momentum"),
        (optax.lion(1e-3, weight_decay=0.0), "Lion"),
        (optax.rmsprop(1e-3), "RMSProp or Adagrad"),
        (optax.adam(1e-3), "Adam"),
        (optax.adamw(1e-3, weight_decay=0.1), "AdamW"),
        (optax.adafactor(1e-2, min_dim_size_to_factor=4, momentum=None), "Adafactor"),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
         "Adam, gradients scaled by a norm of all"),
        (optax.lamb(1e-2), "Adam scaled by norms of weights"),
        (optax.contrib.muon(1e-2),
         "an optimizer that multiplies matrices, as Muon and Shampoo do, "
         "1 array of state left alone"),
        (optax.chain(optax.clip(1.0), optax.adam(1e-3)), "Adam"),
    ],
)  # fmt: skip
@pytest.mark.thinned(5)
def test_the_optimizer_is_told_by_what_its_update_holds(
    optimizer: optax.GradientTransformation, said: str
) -> None:
    text = Step(_MLP, "asked", optimizer).text
    assert lines(text, micro_batches=2)[0] == f"trains: 10 weights, {said}"


def test_replicas_say_what_is_combined_and_what_is_their_own() -> None:
    text = STEPS["cnn_sgd"].text
    cut = lines(text, micro_batches=2, replicas=2)
    assert cut[0].startswith("trains: ")
    assert "arrays of state made by each micro-batch" in cut[0]
    assert cut[-1].startswith("2 replicas: gradients combined by mean, weights stay alike; ")
    assert cut[-1].endswith("state of micro-batches, data, results: each replica's own")
    (alone,) = lines(text, replicas=2)
    assert alone.startswith("2 replicas: nothing is combined")
    # The cure that it names.
    assert "gradients combined by mean" in lines(text, replicas=2, loop=1)[-1]


# The last op of the update is one that the analysis of state does not follow, so that the new
# weight looks like something that was written.
_HIDDEN = """HloModule m, input_output_alias={ {0}: (0, {}, must-alias) }

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}

ENTRY e {
  w = f32[4] parameter(0)
  x = f32[8,4] parameter(1)
  y = f32[8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}METADATA
  zero = f32[] constant(0)
  square = f32[8] multiply(y, y)
  loss = f32[] reduce(square, zero), dimensions={0}, to_apply=sum
  slope = f32[4] dot(y, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}BACKWARD
  new = f32[4] subtract(w, slope)
  sorted = f32[4] sort(new), dimensions={0}, to_apply=less
  ROOT r = (f32[4], f32[]) tuple(sorted, LOSS)
}
"""


def hidden(*, named: bool, loss: bool) -> str:
    forward = ', metadata={op_name="jvp(dot)"}' if named else ""
    backward = ', metadata={op_name="transpose(jvp(dot))"}' if named else ""
    text = _HIDDEN.replace("METADATA", forward).replace("BACKWARD", backward)
    return text.replace("LOSS", "loss" if loss else "zero")


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        (hidden(named=True, loss=True), "names of a backward pass"),
        (hidden(named=True, loss=False), "names of a backward pass"),
        (hidden(named=False, loss=True), "result 1 may be a loss"),
    ],
)
def test_a_trainer_that_looks_like_a_decoder_is_refused(text: str, sign: str) -> None:
    with pytest.raises(HloipuError, match=sign) as caught:
        lines(text, micro_batches=2)
    assert caught.value.code == "E0513"


def test_what_the_refusal_says_to_say_is_taken() -> None:
    text = hidden(named=True, loss=True)
    (said, *_) = lines(text, micro_batches=2, role={"0": "carry"})
    assert said == "trains nothing: each micro-batch writes 1 array of state, 1 of floats"
    roles = {"0": "weight"}
    assert lines(text, micro_batches=2, role=roles)[0] == "trains: 1 weight, gradient descent"
    program = hloipu.compile(text, target="tiny", cache=False, micro_batches=2, role=roles)
    draw = np.random.default_rng(0)
    weights = draw.normal(size=4).astype(np.float32)
    inputs = draw.normal(size=(2, 8, 4)).astype(np.float32)
    with program.session(
        state=[weights], infeeds={"data": iter([(x,) for x in inputs])}
    ) as session:
        session.run(1)
        (kept,) = session.state().values()
    slopes = np.mean([(x @ weights) @ x for x in inputs], axis=0)
    np.testing.assert_allclose(kept, np.sort(weights - slopes), rtol=1e-5)


def _contrastive(weights: Any, rows: Any, columns: Any) -> Any:
    logits = (rows @ weights) @ (columns @ weights).T
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(rows))).mean()


def _regression(weights: Any, rows: Any, columns: Any) -> Any:
    return jnp.mean((jnp.tanh(rows @ weights) - columns) ** 2)


@pytest.mark.parametrize(("loss", "compares"), [(_contrastive, True), (_regression, False)])
def test_a_loss_over_the_batch_is_said_to_change(loss: Any, compares: bool) -> None:
    """Widths are the batch's size, so that only what dimensions are tells."""

    def step(weights: Any, rows: Any, columns: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, rows, columns)
        return weights - 0.1 * slopes, value

    square = np.zeros((4, 4), np.float32)
    lowered = jax.jit(step, donate_argnums=0).lower(square, square, square)
    text = lowered.compiler_ir("hlo").as_hlo_text()
    said = any("compares the samples" in line for line in lines(text, micro_batches=2))
    assert said == compares


def test_complex_weights_are_trained_as_others() -> None:
    """Steepest descent of a real loss takes the conjugate gradient."""

    def step(w: Any, x: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda w: jnp.mean(jnp.abs(x @ w) ** 2))(w)
        return w - 0.1 * slope.conj(), loss

    shapes = [jax.ShapeDtypeStruct(s, jnp.complex64) for s in ((3, 2), (8, 3))]
    text = jax.jit(step, donate_argnums=0).lower(*shapes).as_text("hlo")
    assert lines(text, micro_batches=2)[0] == "trains: 1 weight, gradient descent"
