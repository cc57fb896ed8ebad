"""ResNet-50 (v1.5), EfficientNet and U-Net."""

from math import ceil
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tools.models.layers import Style, at_first, at_last, channel_norm, dense, group


def conv(
    style: Style, features: int, size: int, stride: int = 1, *, groups: int = 1, **more: Any
) -> nn.Conv:
    """Return a square convolution without bias, padded to keep the size of its image."""
    return nn.Conv(
        features,
        (size, size),
        (stride, stride),
        padding=[(size // 2, size // 2)] * 2,
        feature_group_count=groups,
        use_bias=False,
        **more,
        **style.types,
    )


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1x1, 3x3 (which has the stride: version 1.5) and 1x1 convolutions beside a short cut."""

    style: Style
    features: int
    stride: int = 1

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return f16[batch, height, width, 4 * features]."""
        style, wide = self.style, 4 * self.features
        y = nn.relu(channel_norm(style, "norm_1")(conv(style, self.features, 1, name="conv_1")(x)))
        y = conv(style, self.features, 3, self.stride, name="conv_2")(y)
        y = conv(style, wide, 1, name="conv_3")(nn.relu(channel_norm(style, "norm_2")(y)))
        y = channel_norm(style, "norm_3", zero=True)(y)
        if x.shape[-1] != wide:
            x = conv(style, wide, 1, self.stride, name="shortcut")(x)
            x = channel_norm(style, "shortcut_norm")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):  # type: ignore[misc]
    """ResNet of bottlenecks; with (3, 4, 6, 3) of them, ResNet-50."""

    style: Style
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, images: Any) -> Any:
        """Return logits f16[batch, classes] of images f16[batch, height, width, 3]."""
        style, first = self.style, 0

        def stem(_: nn.Module, images: Any) -> Any:
            x = conv(style, self.width, 7, 2, name="conv")(images)
            x = nn.relu(channel_norm(style, "norm")(x))
            return nn.max_pool(x, (3, 3), (2, 2), padding=[(1, 1)] * 2)

        with at_first(style):
            x = (nn.remat(stem) if style.remat else stem)(self, images)
        for i, count in enumerate(self.blocks):
            sizes = {"features": self.width << i, "stride": 1 + (i > 0)}
            x = group(style, Bottleneck, count, f"group_{i}", first, **sizes)(x)
            first += count
        with at_last(style):
            return dense(style, self.classes, "head")(x.mean((1, 2)))


class MobileBlock(nn.Module):  # type: ignore[misc]
    """EfficientNet's block: expansion, grouped convolution, squeeze and excitation, projection."""

    style: Style
    features: int
    size: int
    stride: int
    expansion: int
    group_size: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return f16[batch, height, width, features]."""
        style, narrow = self.style, x.shape[-1]
        wide, y = narrow * self.expansion, x
        if self.expansion > 1:
            y = nn.silu(channel_norm(style, "norm_1")(conv(style, wide, 1, name="expand")(y)))
        groups = wide // self.group_size
        y = conv(style, wide, self.size, self.stride, groups=groups, name="spatial")(y)
        y = nn.silu(channel_norm(style, "norm_2")(y))
        squeezed = nn.silu(dense(style, max(1, narrow // 4), "squeeze")(y.mean((1, 2))))
        y = y * nn.sigmoid(dense(style, wide, "excite")(squeezed))[:, None, None, :]
        y = channel_norm(style, "norm_3")(conv(style, self.features, 1, name="project")(y))
        return x + y if self.stride == 1 and narrow == self.features else y


EFFICIENTNET_GROUPS = (
    # blocks, features, size, stride, whether expanded
    (1, 16, 3, 1, False),
    (2, 24, 3, 2, True),
    (2, 40, 5, 2, True),
    (3, 80, 3, 2, True),
    (3, 112, 5, 1, True),
    (4, 192, 5, 2, True),
    (1, 320, 3, 1, True),
)


class EfficientNet(nn.Module):  # type: ignore[misc]
    """EfficientNet: B0 with both factors 1, B4 with 1.4 and 1.8.

    `group_size` 1 and `expansion` 6 are the original's; 16 and 4 Graphcore's variant for training.
    """

    style: Style
    wider: float = 1.0
    deeper: float = 1.0
    group_size: int = 1
    expansion: int = 6
    groups: tuple[tuple[int, int, int, int, bool], ...] = EFFICIENTNET_GROUPS
    classes: int = 1000

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, images: Any) -> Any:
        """Return logits f16[batch, classes] of images f16[batch, height, width, 3]."""
        style, first = self.style, 0
        with at_first(style):
            x = conv(style, self._features(32), 3, 2, name="conv")(images)
            x = nn.silu(channel_norm(style, "norm")(x))
        for i, (blocks, features, size, stride, expanded) in enumerate(self.groups):
            sizes = {
                "features": self._features(features),
                "size": size,
                "stride": stride,
                "expansion": self.expansion if expanded else 1,
                "group_size": self.group_size,
            }
            count = ceil(blocks * self.deeper)
            x = group(style, MobileBlock, count, f"group_{i}", first, **sizes)(x)
            first += count
        with at_last(style):
            x = conv(style, self._features(1280), 1, name="top")(x)
            x = nn.silu(channel_norm(style, "top_norm")(x))
            return dense(style, self.classes, "head")(x.mean((1, 2)))

    def _features(self, features: int) -> int:
        scaled = features * self.wider
        rounded = max(8, int(scaled + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * scaled else rounded


class UNet(nn.Module):  # type: ignore[misc]
    """U-Net: unpadded convolutions down, and up again with crops from the way down beside."""

    style: Style
    width: int = 64
    depth: int = 4
    classes: int = 2

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, images: Any) -> Any:
        """Return logits f16[batch, height - 184, width - 184, classes] (at depth 4)."""
        style, kept, x = self.style, [], images
        twice = nn.remat(TwoConvolutions) if style.remat else TwoConvolutions
        for level in range(self.depth):
            x = twice(style, self.width << level, name=f"down_{level}")(x)
            kept.append(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = twice(style, self.width << self.depth, name="bottom")(x)
        for level in reversed(range(self.depth)):
            features = self.width << level
            up = nn.ConvTranspose(features, (2, 2), (2, 2), name=f"up_{level}", **style.types)
            x = up(x)
            beside, (height, width) = kept[level], x.shape[1:3]
            top, left = ((beside.shape[i + 1] - x.shape[i + 1]) // 2 for i in range(2))
            beside = beside[:, top : top + height, left : left + width]
            x = twice(style, features, name=f"joined_{level}")(jnp.concatenate([beside, x], -1))
        return nn.Conv(self.classes, (1, 1), name="head", **style.types)(x)


class TwoConvolutions(nn.Module):  # type: ignore[misc]
    """Two unpadded 3x3 convolutions, each with a rectifier."""

    style: Style
    features: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return f16[batch, height - 4, width - 4, features]."""
        for i in range(2):
            layer = nn.Conv(
                self.features, (3, 3), padding="VALID", name=f"conv_{i}", **self.style.types
            )
            x = nn.relu(layer(x))
        return x
