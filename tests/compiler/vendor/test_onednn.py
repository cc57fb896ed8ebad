"""oneDNN's calls on CPUs against numpy and JAX."""

import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn

A, B, BIAS, MORE = drawn(2, 4, 5), drawn(2, 5, 3), drawn(3), drawn(4, 3)


def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _said(**config: Any) -> dict[str, Any]:
    return {"outer_dimension_partitions": [], "onednn_matmul_config": config}


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products(turned: tuple[bool, bool]) -> None:
    a, b = A.swapaxes(1, 2) if turned[0] else A, B.swapaxes(1, 2) if turned[1] else B
    said = _said(transpose_a=turned[0], transpose_b=turned[1])
    (made,) = called("__onednn$matmul", [a.copy(), b.copy()], "f32[2,4,3]", said)
    np.testing.assert_allclose(made, A @ B, 1e-5, 1e-5)
    if turned == (False, False):
        (flat, _) = called("__onednn$matmul", [A, B[0]], "(f32[2,4,3], u8[32])", said)
        np.testing.assert_allclose(flat, A @ B[0], 1e-5, 1e-5)


STEPS = {
    "RELU": jax.nn.relu, "TANH": jnp.tanh, "GELU_TANH": jax.nn.gelu, "SIGMOID": jax.nn.sigmoid,
    "GELU_ERF": lambda x: jax.nn.gelu(x, approximate=False), "ELU": jax.nn.elu,
    "RELU6": jax.nn.relu6, "LINEAR": lambda x: 0.3 * x,
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_what_is_done_with_a_product(step: str) -> None:
    fusions = {"ops": ["BIAS", step, "BINARY_ADD"], "alpha_typecast": _bits(0.3)}
    for said in (_said(fusions=fusions), _said(fused_ops=fusions["ops"], alpha=0.3)):
        (made,) = called("__onednn$matmul", [A, B, BIAS, MORE], "f32[2,4,3]", said)
        np.testing.assert_allclose(made, STEPS[step](A @ B + BIAS) + MORE, 1e-5, 1e-5)


def test_softmax_and_norm() -> None:
    x = drawn(2, 6)
    (made,) = called("__onednn$softmax", [x.astype(bfloat16)], "f32[2,6]",
                     {"onednn_softmax_config": {"softmax_axis": 1}})  # fmt: skip
    np.testing.assert_allclose(made, jax.nn.softmax(x.astype(bfloat16).astype(np.float32)), 1e-5)
    (other,) = called("__onednn$softmax", [x], "f32[2,6]",
                      {"onednn_softmax_config": {"softmax_axis": 0}})  # fmt: skip
    np.testing.assert_allclose(other, jax.nn.softmax(x, 0), 1e-5)
    white = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-2)
    scale, shift = drawn(6), drawn(6, seed=1)
    said = {"onednn_layer_norm_config": {"rescale": "SCALE_AND_SHIFT",
                                         "epsilon_typecast": _bits(1e-2)}}  # fmt: skip
    (norm,) = called("__onednn$layernorm", [x, scale, shift], "f32[2,6]", said)
    np.testing.assert_allclose(norm, white * scale + shift, 1e-4, 1e-5)


@pytest.mark.parametrize("first", [0, 1])
def test_convolutions(first: int) -> None:
    x, kernel, bias = drawn(2, 7, 6, 4), drawn(3, 2, 2, 6), drawn(6)

    def counted(*numbers: int) -> list[int]:
        return [n + first for n in numbers]

    data = {"data": {"batch_dim": "0", "feature_dim": "3", "spatial_dims": counted(1, 2)}}
    config = {
        "dims": "4", "input": data, "output": data,
        "kernel": {"filter": {"input_feature_dim": "2", "output_feature_dim": "3",
                              "spatial_dims": counted(0, 1)}},
        "window": {"strides": counted(2, 1), "pad_left": counted(1, 0),
                   "pad_right": counted(2, 1), "window_dilations": counted(1, 2)},
        "feature_groups": "2", "fusions": {"ops": ["BIAS", "RELU"]},
    }  # fmt: skip
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (2, 1), ((1, 2), (0, 1)), rhs_dilation=(1, 2), feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest",
    )  # fmt: skip
    result = f"f32[{','.join(map(str, wanted.shape))}]"
    (made,) = called("__onednn$convolution", [x, kernel, bias], result,
                     {"onednn_conv_config": config})  # fmt: skip
    np.testing.assert_allclose(made, np.maximum(wanted + bias, 0), 1e-4, 1e-5)


REFUSED = {
    "step": (_said(fusions={"ops": ["SWISH"]}), [A, B], "E0530"),
    "packed": (_said(optimization_config={"weights_prepacked": True}), [A, B], "E0530"),
    "too few": (_said(fusions={"ops": ["BIAS"]}), [A, B], "E0531"),
    "too many": (_said(), [A, B, BIAS], "E0531"),
    "sizes": (_said(transpose_a=True), [A, B], "E0531"),
    "bias": (_said(fusions={"ops": ["BIAS"]}), [A, B, drawn(4)], "E0531"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    said, given, code = REFUSED[what]
    with pytest.raises(FormulaError) as caught:
        called("__onednn$matmul", given, "f32[2,4,3]", said)
    assert caught.value.code == code
