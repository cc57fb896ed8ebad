"""Every network by name, with the sizes that were published for IPUs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tools.models.convnets import EFFICIENTNET_GROUPS, EfficientNet, ResNet, UNet
from tools.models.layers import Style
from tools.models.steps import Task, cross_entropy
from tools.models.transformers import Bert, Gpt2, Vit


@dataclass(frozen=True, slots=True)
class Model:
    """A network of the zoo."""

    describes: str
    task: Callable[..., Task]
    """(style, batch, length, **sizes) to what is printed; networks of images take the length as
    the side of an image."""
    sizes: Mapping[str, Any]
    """As published."""
    length: int
    """Words of a sequence, or rows of an image, unless asked otherwise."""
    optimizer: str
    tiny: Mapping[str, Any]
    """Sizes in place of these for a network to try things with."""
    tiny_length: int


def _images(network: type[nn.Module]) -> Callable[..., Task]:
    def task(style: Style, batch: int, length: int, **sizes: Any) -> Task:
        image = jax.ShapeDtypeStruct((batch, length, length, 3), style.dtype)
        return Task(network(style, **sizes), (image,), (_whole(batch),), cross_entropy)

    return task


def _segmentation(style: Style, batch: int, length: int, **sizes: Any) -> Task:
    network = UNet(style, **sizes)
    image = jax.ShapeDtypeStruct((batch, length, length, 1), style.dtype)
    results = jax.eval_shape(lambda x: network.init_with_output(jax.random.key(0), x)[0], image)
    return Task(network, (image,), (_whole(*results.shape[:-1]),), cross_entropy)


def _pretraining(style: Style, batch: int, length: int, **sizes: Any) -> Task:
    """Return BERT's task; of 128 words 20 are masked, of 512 words 76, as in the configurations."""
    masked = 76 if length == 512 else max(1, length * 20 // 128)
    words, chosen = _whole(batch, length), _whole(batch, masked)
    inputs = (words, words, words, chosen)
    return Task(Bert(style, **sizes), inputs, (chosen, _whole(batch)), _pretraining_loss)


def _pretraining_loss(results: Any, words: Any, following: Any) -> Any:
    return cross_entropy(results[0], words) + cross_entropy(results[1], following)


def _language(style: Style, batch: int, length: int, **sizes: Any) -> Task:
    words = _whole(batch, length)
    return Task(Gpt2(style, **sizes), (words,), (words,), cross_entropy)


def _whole(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.int32)


def _efficientnet(name: str, length: int, **sizes: Any) -> Model:
    tiny = {**sizes, "wider": 0.25, "groups": EFFICIENTNET_GROUPS[:2], "classes": 10}
    if "group_size" in sizes:
        tiny["group_size"] = 4
    return Model(name, _images(EfficientNet), sizes, length, "sgd", tiny, 32)


def _bert(name: str, layers: int, width: int) -> Model:
    sizes = {"layers": layers, "width": width, "heads": width // 64}
    return Model(name, _pretraining, sizes, 128, "lamb", {**_TINY, "vocabulary": 96}, 16)


def _vit(name: str, *, pretraining: bool) -> Model:
    sizes = {"layers": 12, "width": 768, "heads": 12, "pretraining": pretraining}
    tiny = {**_TINY, "classes": 10, "pretraining": pretraining}
    return Model(name, _images(Vit), sizes, 224, "adam", tiny, 32)


_TINY = {"layers": 2, "width": 32, "heads": 2}
_B4 = {"wider": 1.4, "deeper": 1.8}
_G16 = {"group_size": 16, "expansion": 4}
"""Graphcore's variant: convolutions of 16 channels each in place of depthwise ones."""

MODELS = {
    "resnet50": Model(
        "ResNet-50 (v1.5)",
        _images(ResNet),
        {},
        224,
        "sgd",
        {"blocks": (1, 2), "width": 8, "classes": 10},
        32,
    ),
    "efficientnet-b0": _efficientnet("EfficientNet-B0", 224),
    "efficientnet-b4": _efficientnet("EfficientNet-B4", 380, **_B4),
    "efficientnet-b0-g16": _efficientnet("EfficientNet-B0, groups of 16", 224, **_G16),
    "efficientnet-b4-g16": _efficientnet("EfficientNet-B4, groups of 16", 380, **_B4, **_G16),
    "unet": Model("U-Net", _segmentation, {}, 572, "adam", {"width": 4, "depth": 2}, 44),
    "bert-base": _bert("BERT-base, pre-training", 12, 768),
    "bert-large": _bert("BERT-Large, pre-training", 24, 1024),
    "bert-2layer": _bert("two layers of BERT-base, pre-training", 2, 768),
    "gpt2": Model(
        "GPT-2 small",
        _language,
        {"layers": 12, "width": 768, "heads": 12},
        1024,
        "adam",
        {**_TINY, "vocabulary": 96, "positions": 64},
        16,
    ),
    "vit-b16": _vit("ViT-B/16", pretraining=False),
    "vit-b16-pretrain": _vit("ViT-B/16, pre-training", pretraining=True),
}
