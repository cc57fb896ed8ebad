"""Transformer Engine's norms, softmaxes and activations against JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import drawn
from tests.support.te_attention import run

Array = NDArray[Any]
X, GAMMA, BETA = drawn(2, 3, 6), drawn(6), drawn(6, seed=1)
AMAX = np.array([0.1], np.float32)


def _norm(kind: int, centred: bool, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    mean = x.mean(-1, keepdims=True) if kind == 0 else 0 * x[..., :1]
    inverse = 1 / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-2)
    made = (x - mean) * inverse * (gamma + centred)
    return made + (beta if kind == 0 else 0), mean, inverse


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.thinned(2)
def test_norms_and_their_gradients(kind: int, centred: bool) -> None:
    said = (f"{{norm_type = {kind} : i64, zero_centered_gamma = {str(centred).lower()}, "
            "epsilon = 1.0e-2 : f64, sm_margin = 0 : i64, scaling_mode = 0 : i64, "
            "output_amax_when_no_scaling = true}")  # fmt: skip
    one = np.ones(1, np.float32)
    results = "(f32[2,3,6], f32[0], f32[0], f32[0], f32[1], f32[2,3], f32[2,3], u8[8])"
    found = run("te_norm_forward_ffi", [X, one, AMAX, GAMMA, BETA], results, said)
    wanted = _norm(kind, centred, X, GAMMA, BETA)
    np.testing.assert_allclose(found[0], wanted[0], 1e-5, 1e-5)
    np.testing.assert_allclose(found[4], [np.abs(wanted[0]).max()], 1e-5)
    np.testing.assert_allclose(found[5], wanted[1][..., 0], 1e-5, 1e-6)
    np.testing.assert_allclose(found[6], wanted[2][..., 0], 1e-5)
    dz = drawn(2, 3, 6, seed=2)
    _, back = jax.vjp(lambda *a: _norm(kind, centred, *a)[0], X, GAMMA, BETA)
    mine = run("te_norm_backward_ffi", [dz, X, found[5], found[6], GAMMA],
               "(f32[2,3,6], f32[6], f32[6], u8[8])", said)  # fmt: skip
    for made, gradient in zip(mine, back(dz), strict=False):
        np.testing.assert_allclose(made, gradient, 1e-4, 1e-5)


SCORES = drawn(2, 3, 4, 4)
MASK = np.random.default_rng(4).integers(0, 2, (2, 1, 4, 4)).astype(np.uint8)
SOFTMAXES: dict[str, tuple[list[Array], Callable[[Any], Any]]] = {
    "te_scaled_softmax": ([SCORES], lambda x: jax.nn.softmax(0.5 * x)),
    "te_scaled_upper_triang_masked_softmax": (
        [SCORES], lambda x: jax.nn.softmax(0.5 * x, where=np.tri(4, dtype=bool)),
    ),
    "te_scaled_masked_softmax": (
        [SCORES, MASK],
        lambda x: jnp.where((MASK == 1).all(-1, keepdims=True), 0,
                            jax.nn.softmax(0.5 * x, where=MASK != 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFTMAXES)
@pytest.mark.thinned(3)
def test_softmaxes_and_their_gradients(name: str) -> None:
    given, plain = SOFTMAXES[name]
    if name.endswith("d_masked_softmax"):
        MASK[0, 0, 1] = 1  # a query that sees nothing
    said = "{scale_factor = 5.0e-1 : f64}"
    wanted, back = jax.vjp(plain, SCORES)
    (made,) = run(f"{name}_forward_ffi", given, "f32[2,3,4,4]", said)
    np.testing.assert_allclose(made, wanted, 1e-5, 1e-6)
    dz = drawn(2, 3, 4, 4, seed=1)
    (dx,) = run(f"{name}_backward_ffi", [dz, made], "f32[2,3,4,4]", said)
    np.testing.assert_allclose(dx, np.nan_to_num(back(dz)[0]), 1e-4, 1e-5)


ACTIVATIONS: list[tuple[Callable[[Any], Any], bool]] = [
    (jax.nn.gelu, False), (jax.nn.gelu, True), (jax.nn.sigmoid, True), (jax.nn.silu, False),
    (jax.nn.silu, True), (jax.nn.relu, False), (jax.nn.relu, True),
    (lambda x: x * jax.nn.sigmoid(1.702 * x), False),
    (lambda x: x * jax.nn.sigmoid(1.702 * x), True),
    (lambda x: jax.nn.relu(x) ** 2, False), (lambda x: jax.nn.relu(x) ** 2, True),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ACTIVATIONS)))
@pytest.mark.thinned(3)
def test_activations_and_their_gradients(number: int) -> None:
    function, gated = ACTIVATIONS[number]
    x = drawn(3, 1 + gated, 5)
    said = (f"{{act_enum = {number} : i64, scaling_mode = 0 : i64, "
            "output_amax_when_no_scaling = false}")  # fmt: skip
    wanted, back = jax.vjp(lambda a: function(a[:, 0]) * (a[:, 1] if gated else 1), x)
    (made,) = run("te_act_lu_ffi", [x], "f32[3,5]", said)
    np.testing.assert_allclose(made, wanted, 1e-5, 1e-6)
    one = np.ones(1, np.float32)
    later = run("te_act_lu_ffi", [x, one, AMAX], "(f32[3,5], f32[0], f32[0], f32[0], f32[1])", said)
    np.testing.assert_array_equal(later[0], made)
    np.testing.assert_array_equal(later[4], AMAX)
    dz = drawn(3, 5, seed=1)
    (dx,) = run("te_dact_lu_ffi", [dz, x], f"f32[3,{1 + gated},5]", said)
    np.testing.assert_allclose(dx, back(dz)[0], 1e-4, 1e-6)


REFUSED: dict[str, tuple[str, list[Array], str, str, str]] = {
    "8 bits": ("te_act_lu_ffi", [drawn(3, 1, 5)], "f8e4m3fn[3,5]", "{act_enum = 0 : i64}", "E0530"),
    "scaling": ("te_act_lu_ffi", [drawn(3, 1, 5)], "f32[3,5]",
                "{act_enum = 0 : i64, scaling_mode = 2 : i64}", "E0530"),
    "clamped": ("te_act_lu_ffi", [drawn(3, 2, 5)], "f32[3,5]", "{act_enum = 11 : i64}", "E0530"),
    "parts": ("te_act_lu_ffi", [drawn(3, 2, 5)], "f32[3,5]", "{act_enum = 0 : i64}", "E0531"),
    "mask": ("te_scaled_masked_softmax_forward_ffi", [SCORES, MASK[:, :, :3]], "f32[2,3,4,4]",
             "{scale_factor = 1.0 : f64}", "E0531"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    target, given, result, said, code = REFUSED[what]
    with pytest.raises(FormulaError) as caught:
        run(target, given, result, said)
    assert caught.value.code == code
