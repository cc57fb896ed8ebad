"""Op classes that multiply: matrix products and convolutions, with both gradients."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, array
from tools.fidelity.op_class import OpClass, like, op_class
from tools.fidelity.product_formulas import Sizes, product


def matmuls() -> Iterator[OpClass]:
    """Yield products of BERT and of its heads."""
    for kind, name in ((F16, "f16"), (F32, "f32")):
        for rows, depth, columns in ((1024, 768, 768), (1024, 768, 3072), (8, 768, 3072)):
            x, w = array(kind, rows, depth), array(kind, depth, columns)
            yield op_class(f"product by {depth}x{columns}", jnp.dot, (x, w),
                           products=rows * depth * columns,
                           poplibs=product(Sizes(1, rows, 1, depth, columns), name))  # fmt: skip
    x, g = array(F16, 1024, 768), array(F16, 1024, 3072)
    yield op_class("weight gradient of a product", lambda a, b: jnp.einsum("ri,ro->io", a, b),
                   (x, g), products=1024 * 768 * 3072,
                   poplibs=product(Sizes(1, 768, 1, 1024, 3072), "f16"))  # fmt: skip
    q, p = array(F16, 96, 128, 64), array(F16, 96, 128, 128)
    count = 96 * 128 * 128 * 64
    yield op_class("QK of heads", lambda a, b: jnp.einsum("hqd,hkd->hqk", a, b), (q, q),
                   products=count, poplibs=product(Sizes(96, 128, 1, 64, 128), "f16"))  # fmt: skip
    yield op_class("PV of heads", lambda a, b: jnp.einsum("hqk,hkd->hqd", a, b), (p, q),
                   products=count, poplibs=product(Sizes(96, 128, 1, 128, 64), "f16"))  # fmt: skip


# Name, image, channels out, window, stride, groups.
_CONVOLUTIONS = (
    ("1x1", (4, 56, 56, 64), 256, 1, 1, 1),
    ("1x1, stride 2", (4, 56, 56, 256), 512, 1, 2, 1),
    ("3x3", (4, 56, 56, 64), 64, 3, 1, 1),
    ("3x3, stride 2", (4, 56, 56, 128), 128, 3, 2, 1),
    ("7x7, stride 2", (4, 224, 224, 3), 64, 7, 2, 1),
    ("3x3 in 32 groups", (4, 56, 56, 128), 128, 3, 1, 32),
    ("depthwise 3x3", (4, 56, 56, 64), 64, 3, 1, 64),
)


def convolutions() -> Iterator[OpClass]:
    """Yield convolutions of ResNet-50, ResNeXt and MobileNet, forward and backward."""
    for name, image, features, window, stride, groups in _CONVOLUTIONS:
        x = array(F16, *image)
        kernel = array(F16, window, window, image[-1] // groups, features)
        convolve = _convolution(stride, groups)
        y = like(convolve, x, kernel)
        batch, height, width, _ = y.shape
        taps = (window, window) if window > 1 else (1,)
        inward, outward = image[-1] // groups, features // groups
        count = prod(y.shape) * window * window * inward
        depthwise = groups == image[-1]
        slots = {"slots": count / 4} if depthwise else {"products": count}
        forward = Sizes(groups, batch * height, width, inward, outward, taps, stride)
        back = Sizes(groups, batch * height, width, outward, inward, taps, 1)
        weights = Sizes(groups, window * window * inward, 1, batch * height * width, outward,
                        windows=window * window)  # fmt: skip

        def of_image(k: Any, g: Any, f: Any = convolve, x: Any = x) -> Any:
            return jax.vjp(lambda a: f(a, k), jnp.zeros(x.shape, F16))[1](g)[0]

        def of_kernel(x: Any, g: Any, f: Any = convolve, k: Any = kernel) -> Any:
            return jax.vjp(lambda a: f(x, a), jnp.zeros(k.shape, F16))[1](g)[0]

        for what, function, arguments, sizes in (
            ("", convolve, (x, kernel), forward),
            (", image gradient", of_image, (kernel, y), back),
            (", weight gradient", of_kernel, (x, y), weights),
        ):
            yield op_class(f"convolution {name}{what}", function, arguments, **slots,
                           poplibs=product(sizes, "f16"))  # fmt: skip


def _convolution(stride: int, groups: int) -> Callable[..., Any]:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    return convolve
