"""cuDNN's convolutions and norms against JAX's own, with their gradients."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn, shape_of

Array = NDArray[Any]
KEY = "cudnn_conv_backend_config"


@dataclass(frozen=True)
class Case:
    """A convolution."""

    x: tuple[int, ...] = (2, 7, 6, 4)
    kernel: tuple[int, ...] = (3, 2, 4, 6)
    labels: str = "b01f_01io->b01f"
    stride: tuple[int, ...] = (1, 1)
    pads: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def line(self) -> str:
        """The call's attributes."""
        sizes = [self.kernel[self.labels.split("_")[1].index(str(n))] for n in range(2)]
        pads = "x".join(f"{a}_{b}" for a, b in self.pads)
        window = f"size={sizes[0]}x{sizes[1]} stride={self.stride[0]}x{self.stride[1]} pad={pads}"
        window += f" rhs_dilate={self.dilation[0]}x{self.dilation[1]}"
        groups = f", feature_group_count={self.groups}" if self.groups > 1 else ""
        return f"window={{{window}}}, dim_labels={self.labels}{groups}"

    def plain(self, x: Any, kernel: Any) -> Any:
        """What JAX makes of it."""
        parts = self.labels.replace("->", "_").split("_")
        order = ("bf01", "oi01", "bf01")
        given = [x.transpose([parts[0].index(c) for c in order[0]]),
                 kernel.transpose([parts[1].index(c) for c in order[1]])]  # fmt: skip
        made = jax.lax.conv_general_dilated(
            *given, self.stride, self.pads, rhs_dilation=self.dilation,
            feature_group_count=self.groups, precision="highest",
        )  # fmt: skip
        return made.transpose([order[2].index(c) for c in parts[2]])


CASES = {
    "plain": Case(),
    "strides and padding": Case(stride=(2, 3), pads=((1, 2), (0, 1))),
    "dilated": Case(dilation=(2, 3), pads=((2, 1), (1, 3))),
    "other order": Case((4, 2, 7, 6), (6, 4, 3, 2), "fb01_oi01->bf01", stride=(2, 1)),
    "groups": Case(kernel=(3, 2, 2, 6), groups=2, stride=(2, 1), pads=((1, 1), (0, 1))),
    "depthwise": Case((2, 4, 7, 6), (8, 1, 3, 2), "bf01_oi01->b01f", groups=4, dilation=(1, 2)),
    "larger padding": Case(pads=((3, 4), (2, 2)), stride=(3, 2)),
    "input beyond the last window": Case(stride=(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thinned(3)
def test_convolutions_and_their_gradients(name: str) -> None:
    case = CASES[name]
    x, kernel = drawn(*case.x), drawn(*case.kernel)
    wanted, back = jax.vjp(case.plain, x, kernel)
    said = {"cudnn_conv_backend_config": {"conv_result_scale": 1, "activation_mode": "kNone"}}
    shapes = [shape_of(np.asarray(a)) for a in (wanted, x, kernel)]

    def run(target: str, given: list[Array], shape: str) -> Array:
        return called(target, given, f"({shape}, u8[0])", said, case.line)[0]

    made = run("__cudnn$convForward", [x, kernel], shapes[0])
    np.testing.assert_allclose(made, wanted, 1e-4, 1e-4)
    dy = drawn(*wanted.shape, seed=1)
    dx, dw = back(dy)
    np.testing.assert_allclose(run("__cudnn$convBackwardInput", [dy, kernel], shapes[1]), dx, 1e-4,
                               1e-4)  # fmt: skip
    np.testing.assert_allclose(run("__cudnn$convBackwardFilter", [x, dy], shapes[2]), dw, 1e-4,
                               1e-4)  # fmt: skip


MODES = {
    "kNone": lambda x: x, "kRelu": jax.nn.relu, "kRelu6": jax.nn.relu6, "kTanh": jnp.tanh,
    "kSigmoid": jax.nn.sigmoid, "kElu": jax.nn.elu, "2": jax.nn.relu,
    "kLeakyRelu": lambda x: jax.nn.leaky_relu(x, 0.3),
    "kGeluExact": lambda x: jax.nn.gelu(x, approximate=False),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_fused_convolution(mode: str) -> None:
    case = Case()
    x, kernel, bias = drawn(*case.x), drawn(*case.kernel), drawn(6)
    wanted = case.plain(x, kernel)
    side = drawn(*wanted.shape)
    said = {"conv_result_scale": 0.5, "activation_mode": mode, "side_input_scale": 2,
            "leakyrelu_alpha": 0.3}  # fmt: skip
    result = f"({shape_of(side)}, u8[16])"
    target = "__cudnn$convBiasActivationForward"
    given = [x, kernel, bias, side]
    (made, _) = called(target, given, result, {KEY: said}, case.line)
    full = MODES[mode](0.5 * wanted + 2 * side + bias)
    np.testing.assert_allclose(made, full, 1e-4, 1e-4)


def _layer(x: Any, scale: Any, bias: Any) -> Any:
    mean = x.mean((1, 2, 3), keepdims=True)
    variance = ((x - mean) ** 2).mean((1, 2, 3), keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-3) * scale + bias


def test_layer_norms_and_their_gradients() -> None:
    x, scale, bias = drawn(3, 4, 2, 2), drawn(1, 4, 2, 2), drawn(1, 4, 2, 2, seed=1)
    wanted, back = jax.vjp(_layer, x, scale, bias)

    def said(kind: str) -> dict[str, Any]:
        return {"cudnn_norm_backend_config": {"epsilon": 0.001, "kind": kind}}

    (alone, _) = called("__cudnn$norm", [x, scale, bias], "(f32[3,4,2,2], u8[4])",
                        said("LAYER_FWD_INFER"))  # fmt: skip
    np.testing.assert_allclose(alone, wanted, 1e-4, 1e-4)
    made, mean, inverse, _ = called(
        "__cudnn$norm", [x, scale, bias], "(f32[3,4,2,2], f32[3,1,1,1], f32[3,1,1,1], u8[4])",
        said("LAYER_FWD_TRAIN"),
    )  # fmt: skip
    np.testing.assert_allclose(made, wanted, 1e-4, 1e-4)
    dy = drawn(3, 4, 2, 2, seed=2)
    found = called(
        "__cudnn$norm", [x, scale, dy, mean, inverse],
        "(f32[3,4,2,2], f32[1,4,2,2], f32[1,4,2,2], u8[4])", said("LAYER_BWD"),
    )  # fmt: skip
    for mine, theirs in zip(found, back(dy), strict=False):
        np.testing.assert_allclose(mine, theirs, 1e-4, 1e-4)


LINE = Case().line
REFUSED = {
    "graph": ("__cudnn$convForwardGraph", {"serialized_graph": "1:[f32]conv();2:[f32]relu(1);"},
              LINE, "E0530", "graph"),
    "batches": ("__cudnn$convForward", {}, LINE + ", batch_group_count=2", "E0530", "batch"),
    "no labels": ("__cudnn$convForward", {}, "window={size=3x2}", "E0531", "dim_labels"),
    "no window": ("__cudnn$convForward", {}, "dim_labels=b01f_01io->b01f", "E0531", "window"),
    "dilated input": ("__cudnn$convForward", {}, LINE.replace("pad=", "lhs_dilate=2x2 pad="),
                      "E0530", "dilated"),
    "order": ("__cudnn$convForward", {"reordered_int8_nchw_vect": True}, LINE, "E0530",
              "reordered"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    target, said, line, code, words = REFUSED[what]
    x, kernel = drawn(2, 7, 6, 4), drawn(3, 2, 4, 6)
    with pytest.raises(FormulaError, match=words) as caught:
        called(target, [x, kernel], "(f32[2,5,5,6], u8[0])", {KEY: said}, line)
    assert caught.value.code == code
