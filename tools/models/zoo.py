"""Every network by name, with the sizes that were published for IPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tools.models.convnets import EfficientNet, ResNet, UNet
from tools.models.layers import Style
from tools.models.steps import Task, cross_entropy
from tools.models.transformers import Bert, Gpt2, Vit


@dataclass(frozen=True, slots=True)
class Model:
    """A network of the zoo."""

    describes: str
    task: Callable[[Style, int, int], Task]
    """(style, batch, length) to what is printed; networks of images take the length as side."""
    length: int
    """Words of a sequence, or rows of an image, unless asked otherwise."""
    optimizer: str


def _images(network: Any, style: Style, batch: int, side: int) -> Task:
    image = jax.ShapeDtypeStruct((batch, side, side, 3), style.dtype)
    return Task(network(style), (image,), (_whole(batch),), cross_entropy)


def _segmentation(network: Any, style: Style, batch: int, side: int) -> Task:
    built = network(style)
    image = jax.ShapeDtypeStruct((batch, side, side, 1), style.dtype)
    results = jax.eval_shape(lambda x: built.init_with_output(jax.random.key(0), x)[0], image)
    return Task(built, (image,), (_whole(*results.shape[:-1]),), cross_entropy)


def _bert(layers: int, width: int, style: Style, batch: int, length: int) -> Task:
    network = Bert(style, layers, width, width // 64)
    masked = max(1, length * 20 // 128) if length < 512 else 76
    words = _whole(batch, length)
    inputs = (words, words, words, _whole(batch, masked))
    return Task(network, inputs, (_whole(batch, masked), _whole(batch)), _pretraining_loss)


def _pretraining_loss(results: Any, words: Any, following: Any) -> Any:
    return cross_entropy(results[0], words) + cross_entropy(results[1], following)


def _gpt2(style: Style, batch: int, length: int) -> Task:
    words = _whole(batch, length)
    return Task(Gpt2(style), (words,), (words,), cross_entropy)


def _whole(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.int32)


MODELS = {
    "resnet50": Model("ResNet-50 (v1.5)", partial(_images, ResNet), 224, "sgd"),
    "efficientnet-b0": Model("EfficientNet-B0", partial(_images, EfficientNet), 224, "sgd"),
    "efficientnet-b4": Model(
        "EfficientNet-B4",
        partial(_images, partial(EfficientNet, wider=1.4, deeper=1.8)),
        380,
        "sgd",
    ),
    "unet": Model("U-Net", partial(_segmentation, UNet), 572, "adam"),
    "bert-base": Model("BERT-base, pre-training", partial(_bert, 12, 768), 128, "lamb"),
    "bert-large": Model("BERT-Large, pre-training", partial(_bert, 24, 1024), 128, "lamb"),
    "bert-2layer": Model("two layers of BERT-base", partial(_bert, 2, 768), 128, "lamb"),
    "gpt2": Model("GPT-2 small", _gpt2, 1024, "adam"),
    "vit-b16": Model("ViT-B/16", partial(_images, Vit), 224, "adam"),
}
