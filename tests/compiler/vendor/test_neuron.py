"""Calls of AWS Neuron against JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn

Array = NDArray[Any]
X = drawn(3, 4, 5)
ELEMENTWISE = {
    "AwsNeuronGelu": lambda x: jax.nn.gelu(x, approximate=False),
    "AwsNeuronGeluApprxTanh": lambda x: jax.nn.gelu(x, approximate=True),
    "AwsNeuronGeluBackward": jax.vmap(jax.grad(lambda x: jax.nn.gelu(x, approximate=False))),
    "AwsNeuronSilu": jax.nn.silu,
    "AwsNeuronErf": jax.scipy.special.erf,
}


def run(target: str, given: list[Array], result: str, configuration: str = "") -> list[Array]:
    line = f'backend_config="{configuration}"' if configuration else ""
    return called(target, given, result, line=line)


@pytest.mark.parametrize("target", ELEMENTWISE)
def test_elementwise(target: str) -> None:
    x = 3 * drawn(40)
    (made,) = run(target, [x], "f32[40]")
    np.testing.assert_allclose(made, ELEMENTWISE[target](x), 1e-5, 2e-6)
    (narrow,) = run(target, [x.astype(bfloat16)], "bf16[40]")
    wanted = ELEMENTWISE[target](x.astype(bfloat16).astype(np.float32))
    np.testing.assert_allclose(narrow.astype(np.float32), wanted, 1e-2, 1e-3)


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.thinned(3)
def test_softmax_and_its_gradient(dimension: int) -> None:
    wanted, back = jax.vjp(lambda x: jax.nn.softmax(x, dimension), X)
    (made,) = run("AwsNeuronSoftmax", [X], "f32[3,4,5]", str(dimension))
    np.testing.assert_allclose(made, wanted, 1e-5, 1e-6)
    dy = drawn(3, 4, 5, seed=1)
    (dx,) = run("AwsNeuronSoftmaxBackward", [dy, made], "f32[3,4,5]", str(dimension))
    np.testing.assert_allclose(dx, back(dy)[0], 1e-4, 1e-6)


def test_root_mean_square_norms() -> None:
    weight, epsilon = drawn(5), np.array(1e-2, np.float32)
    (made,) = run("AwsNeuronRmsNorm", [X, weight, epsilon], "f32[3,4,5]", "2")
    wanted = X / np.sqrt((X**2).mean(2, keepdims=True) + 1e-2) * weight
    np.testing.assert_allclose(made, wanted, 1e-5, 1e-6)


def test_where_the_largest_and_smallest_are() -> None:
    x = np.array([[3, 9, 9, -1], [2, 2, -4, -4]], np.float32)
    for kind in (np.float32, np.int32, np.int8):
        (most,) = run("AwsNeuronArgMax", [x.astype(kind)], "s64[2]", "1")
        (least,) = run("AwsNeuronArgMin", [x.astype(kind)], "s64[4]", "0")
        np.testing.assert_array_equal(most, x.argmax(1))
        np.testing.assert_array_equal(least, x.argmin(0))
    x[0, 2] = np.nan
    np.testing.assert_array_equal(run("AwsNeuronArgMax", [x], "s64[2]", "1")[0], [2, 0])


def test_top_k() -> None:
    values, places = run("AwsNeuronTopK", [X], "(f32[3,4,2], u32[3,4,2])", "2")
    wanted = jax.lax.top_k(jnp.asarray(X), 2)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(places, np.asarray(wanted[1]).astype(np.uint32))


def test_marks_leave_values_alone() -> None:
    (made,) = run("AwsNeuronModuleMarkerStart-Forward", [X], "f32[3,4,5]")
    np.testing.assert_array_equal(made, X)


REFUSED = {
    "dimension": ("AwsNeuronSoftmax", [X], "f32[3,4,5]", "3", "E0531"),
    "no dimension": ("AwsNeuronSoftmax", [X], "f32[3,4,5]", "", "E0531"),
    "weight": ("AwsNeuronRmsNorm", [X, drawn(4), drawn(1)], "f32[3,4,5]", "2", "E0531"),
    "k": ("AwsNeuronTopK", [X], "(f32[3,4,9], u32[3,4,9])", "9", "E0531"),
    "kernel": ("AwsNeuronCustomNativeKernel", [X], "f32[3,4,5]", "", "E0530"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    target, given, result, configuration, code = REFUSED[what]
    with pytest.raises(FormulaError) as caught:
        run(target, given, result, configuration)
    assert caught.value.code == code
