"""BERT for pre-training, GPT-2 and ViT."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tools.models.layers import Style, at_first, at_last, dense, layer_norm, repeated


class Attention(nn.Module):  # type: ignore[misc]
    """Self-attention of several heads; query, key and value come from one product.

    `drop_weights`: weights may drop out, as in GPT-2 and where ViT is pre-trained.
    """

    style: Style
    heads: int
    causal: bool = False
    drop_weights: bool = False

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any, mask: Any = None) -> Any:
        """Return f16[batch, length, width] of x[batch, length, width] and s32[batch, length]."""
        style, (batch, length, width) = self.style, x.shape
        qkv = dense(style, 3 * width, "qkv")(x)
        qkv = qkv.reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = (qkv[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        scores = scores * jnp.asarray((width // self.heads) ** -0.5, style.dtype)
        low = jnp.asarray(-1e4, style.dtype)
        if mask is not None:
            scores = scores + ((1 - mask).astype(style.dtype) * low)[:, None, None, :]
        if self.causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, low)
        weights = nn.softmax(scores)
        if self.drop_weights:
            weights = _dropout(style, weights)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width)
        return dense(style, width, "out")(mixed)


class Layer(nn.Module):  # type: ignore[misc]
    """A transformer layer: norms after the sums as in BERT, or before as in GPT-2 and ViT."""

    style: Style
    heads: int
    before: bool = False
    causal: bool = False
    drop_weights: bool = False
    drop_hidden: bool = False
    """What the wide layer makes may drop out, too, as where ViT is pre-trained."""

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any, mask: Any = None) -> Any:
        """Return x[batch, length, width] after attention and two dense layers."""
        style, width = self.style, x.shape[-1]
        attention = Attention(style, self.heads, self.causal, self.drop_weights, name="attention")
        norms = layer_norm(style, "norm_1"), layer_norm(style, "norm_2")
        up, down = dense(style, 4 * width, "up"), dense(style, width, "down")
        if self.before:
            x = x + _dropout(style, attention(norms[0](x), mask))
            wide = nn.gelu(up(norms[1](x)))
            return x + _dropout(style, down(_dropout(style, wide) if self.drop_hidden else wide))
        x = norms[0](x + _dropout(style, attention(x, mask)))
        return norms[1](x + _dropout(style, down(nn.gelu(up(x)))))


class Bert(nn.Module):  # type: ignore[misc]
    """BERT with its pre-training heads: masked words (tied embedding), next sentence."""

    style: Style
    layers: int
    width: int
    heads: int
    vocabulary: int = 30522
    positions: int = 512

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any, segments: Any, mask: Any, places: Any) -> Any:
        """Return logits of words f16[batch, masked, vocabulary] and of the next sentence.

        tokens, segments, mask: s32[batch, length]; places: s32[batch, masked], which words to tell.
        """
        style = self.style
        with at_first(style):
            embed = nn.Embed(self.vocabulary, self.width, name="words", **style.types)
            x = embed(tokens)
            x = x + nn.Embed(self.positions, self.width, name="positions", **style.types)(
                jnp.arange(tokens.shape[1])
            )
            x = x + nn.Embed(2, self.width, name="segments", **style.types)(segments)
            x = _dropout(style, layer_norm(style, "norm")(x))
        x = repeated(style, Layer, self.layers, "layer", heads=self.heads)(x, mask)
        with at_last(style):
            chosen = jnp.take_along_axis(x, places[:, :, None], axis=1)
            chosen = nn.gelu(dense(style, self.width, "transform")(chosen))
            chosen = layer_norm(style, "transform_norm")(chosen)
            bias = self.param("words_bias", nn.initializers.zeros, (self.vocabulary,), style.dtype)
            words = embed.attend(chosen) + bias
            pooled = jnp.tanh(dense(style, self.width, "pooler")(x[:, 0]))
            return words, dense(style, 2, "next_sentence")(pooled)


class Gpt2(nn.Module):  # type: ignore[misc]
    """GPT-2: causal layers, norms before the sums, tied embedding."""

    style: Style
    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any) -> Any:
        """Return logits f16[batch, length, vocabulary] of s32[batch, length]."""
        style = self.style
        with at_first(style):
            embed = nn.Embed(self.vocabulary, self.width, name="words", **style.types)
            places = nn.Embed(self.positions, self.width, name="positions", **style.types)
            x = _dropout(style, embed(tokens) + places(jnp.arange(tokens.shape[1])))
        sizes = {"heads": self.heads, "before": True, "causal": True, "drop_weights": True}
        x = repeated(style, Layer, self.layers, "layer", **sizes)(x)
        with at_last(style):
            return embed.attend(layer_norm(style, "norm")(x))


class Vit(nn.Module):  # type: ignore[misc]
    """ViT: patches of an image as words, a class token, norms before the sums."""

    style: Style
    layers: int
    width: int
    heads: int
    patch: int = 16
    classes: int = 1000
    pretraining: bool = False
    """More drops out, and a layer with tanh stands before the head."""

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, images: Any) -> Any:
        """Return logits f16[batch, classes] of images f16[batch, height, width, 3]."""
        style, side = self.style, (self.patch, self.patch)
        with at_first(style):
            x = nn.Conv(self.width, side, side, "VALID", name="patches", **style.types)(images)
            x = x.reshape(x.shape[0], -1, self.width)
            token = self.param("token", nn.initializers.zeros, (1, 1, self.width), style.dtype)
            x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, self.width)), x], axis=1)
            shape = (1, x.shape[1], self.width)
            x = x + self.param("positions", nn.initializers.normal(0.02), shape, style.dtype)
            x = _dropout(style, x)
        more = {"drop_weights": self.pretraining, "drop_hidden": self.pretraining}
        x = repeated(style, Layer, self.layers, "layer", heads=self.heads, before=True, **more)(x)
        with at_last(style):
            x = layer_norm(style, "norm")(x)[:, 0]
            if self.pretraining:
                x = jnp.tanh(dense(style, self.width, "representation")(x))
            return dense(style, self.classes, "head")(x)


def _dropout(style: Style, x: Any) -> Any:
    if not style.dropout or not style.train:
        return x
    return nn.Dropout(style.dropout, deterministic=False)(x)
