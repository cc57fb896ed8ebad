"""Calls of Transformer Engine's fused attention, and what they are to compute, in f64."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.popops_call import evaluated, shape_of, text_of_call

Full = NDArray[np.float64]
LAYOUTS = {"packed": (5, 10), "kv packed": (7, 12), "separate": (9, 14)}
MASKS = ("none", "padding", "causal", "padding causal", "causal end", "padding causal end")
_WORKSPACE = 16


@dataclass(frozen=True)
class Case:
    """Sizes, mask and options of a call."""

    batch: int = 2
    queries: int = 6
    keys: int = 6
    heads: int = 2
    groups: int = 2
    size: int = 4
    value_size: int = 4
    layout: str = "separate"
    mask: str = "none"
    window: tuple[int, int] = (-1, -1)
    scale: float = 0.5
    bias: tuple[int, int] | None = None
    """Its batch and heads."""
    bias_type: int = 2
    softmax: int = 0
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of queries and keys of each sample, or of each segment."""
    starts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Offsets of segments, where sequences stand one behind the other."""
    segments: int = 1
    dropout: float = 0.0
    others: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_ragged(self) -> bool:
        """Whether sequences stand one behind the other."""
        return self.starts is not None

    def attributes(self) -> str:
        """The call's configuration as XLA prints it."""
        said: dict[str, object] = {
            "input_batch": self.batch, "q_max_seqlen": self.queries, "kv_max_seqlen": self.keys,
            "attn_heads": self.heads, "num_gqa_groups": self.groups, "qk_head_dim": self.size,
            "v_head_dim": self.value_size, "bias_type": self.bias_type if self.bias else 0,
            "bias_batch": self.bias[0] if self.bias else 0,
            "bias_heads": self.bias[1] if self.bias else 0,
            "mask_type": MASKS.index(self.mask), "max_segments_per_seq": self.segments,
            "qkv_layout": LAYOUTS[self.layout][self.is_ragged], "scaling_factor": self.scale,
            "dropout_probability": self.dropout, "is_training": True, "deterministic": False,
            "window_size_left": self.window[0], "window_size_right": self.window[1],
        }  # fmt: skip
        if self.softmax:
            said["softmax_type"] = self.softmax
        said |= self.others
        parts = []
        for key, value in sorted(said.items()):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if isinstance(value, float):
                text = f"{value:e} : f64"
            elif not isinstance(value, bool):
                text += " : i64"
            parts.append(f"{key} = {text}")
        return f"{{{', '.join(parts)}}}"

    def drawn(self) -> list[NDArray[Any]]:
        """Random q, k, v, bias, and softmax's offsets."""
        rng = np.random.default_rng(7)
        dims = [
            (self.batch, self.queries, self.heads, self.size),
            (self.batch, self.keys, self.groups, self.size),
            (self.batch, self.keys, self.groups, self.value_size),
            (*self.bias, self.queries, self.keys) if self.bias else (0,),
            (1, self.heads, 1, 1) if self.softmax else (0,),
        ]
        found = [rng.standard_normal(d).astype(np.float32) for d in dims]
        return [*found[:4], found[4] if self.softmax == 2 else np.zeros(dims[4], np.float32)]

    def packed(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return q, k and v as operands of the call."""
        q, k, v = parts
        nothing = np.zeros(0, q.dtype)
        if self.layout == "packed":
            return [np.stack([q, k, v], 2), nothing, nothing]
        if self.layout == "kv packed":
            return [q, np.stack([k, v], 2), nothing]
        return [q, k, v]

    def sequences(self) -> list[NDArray[Any]]:
        """Return sums of lengths, and offsets."""
        count = self.batch * (self.segments if self.is_ragged else 1)
        lengths = self.lengths or ((self.queries,) * count, (self.keys,) * count)
        sums = [np.array([0, *itertools.accumulate(x)], np.int32) for x in lengths]
        if self.starts is None:
            return [*sums, np.zeros(0, np.float32), np.zeros(0, np.float32)]
        return [*sums, *(np.array([*x, -1], np.int32) for x in self.starts)]

    def softmax_dims(self) -> tuple[int, ...]:
        """Sizes of the statistics."""
        if self.is_ragged:
            return (self.batch, self.queries, self.heads, 1)
        return (self.batch, self.heads, self.queries, 1)

    # -- what it is to compute ---------------------------------------------------------------------

    def seen(self) -> NDArray[np.bool_]:
        """Truth values [batch, queries, keys], pair by pair."""
        found = np.zeros((self.batch, self.queries, self.keys), bool)
        for b, i, j in itertools.product(*map(range, found.shape)):
            found[b, i, j] = self._is_seen(b, i, j)
        return found

    def _is_seen(self, b: int, i: int, j: int) -> bool:
        lengths = (self.queries, self.keys)
        if self.starts is not None and self.lengths is not None:
            at = (b * self.queries + i, b * self.keys + j)
            ranges = [
                [n for n, (s, size) in enumerate(zip(starts, sizes, strict=True))
                 if s <= t < s + size]
                for starts, sizes, t in zip(self.starts, self.lengths, at, strict=True)
            ]  # fmt: skip
            if not ranges[0] or ranges[0] != ranges[1]:
                return False
            n = ranges[0][0]
            i, j = at[0] - self.starts[0][n], at[1] - self.starts[1][n]
            lengths = (self.lengths[0][n], self.lengths[1][n])
        elif self.lengths is not None and "padding" in self.mask:
            lengths = (self.lengths[0][b], self.lengths[1][b])
        if i >= lengths[0] or j >= lengths[1]:
            return False
        distance = j - i - (lengths[1] - lengths[0] if self.mask.endswith("end") else 0)
        left, right = self.window
        if "causal" in self.mask and distance > 0:
            return False
        return (left < 0 or distance >= -left) and (right < 0 or distance <= right)

    def plain(
        self, given: Sequence[Full], seen: NDArray[np.bool_], kept: Full | None = None
    ) -> tuple[Full, Full]:
        """Return attention's result, and log(sum(exp)) [batch, heads, queries].

        `seen`: truth values [batch, queries, keys]; `kept`: factors of probabilities.
        """
        q, k, v, bias, sink = (np.asarray(x, np.float64) for x in given)
        each = self.heads // self.groups
        k, v = np.repeat(k, each, 2), np.repeat(v, each, 2)
        scores = np.einsum("bihd,bjhd->bhij", q, k)
        if self.bias and self.bias_type == 1:
            scores = scores + bias
        scores = scores * self.scale
        if self.bias and self.bias_type == 2:
            scores = scores + bias
        powers = np.exp(scores) * seen[:, None]
        total = powers.sum(-1, keepdims=True)
        if self.softmax:
            total = total + np.exp(sink)
        p = powers / np.where(total > 0, total, 1)
        made = np.einsum("bhij,bjhd->bihd", p if kept is None else p * kept, v)
        return made, np.log(np.where(total > 0, total, 1))[..., 0]

    # -- the calls ---------------------------------------------------------------------------------

    def forward(self, given: Sequence[NDArray[Any]], statistics: str = "") -> list[NDArray[Any]]:
        """Return what the forward call gives."""
        operands = self.forward_operands(given)
        dims = (self.batch, self.queries, self.heads, self.value_size)
        kept = statistics or f"f32[{_text(self.softmax_dims())}]"
        kind = shape_of(given[0]).partition("[")[0]
        result = f"({kind}[{_text(dims)}], {kept}, u32[2,4], u8[{_WORKSPACE}])"
        return run("te_fused_attn_forward_ffi", operands, result, self.attributes())

    def forward_operands(self, given: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the operands of the forward call."""
        sink = [given[4]] if self.softmax else []
        seed = np.array([3, 5], np.uint32)
        spare = [np.zeros(0, np.float32)] * 4
        return [*self.packed(given[:3]), given[3], *sink, seed, *self.sequences(), *spare]

    def backward(
        self, given: Sequence[NDArray[Any]], made: Sequence[NDArray[Any]], gradient: NDArray[Any]
    ) -> list[NDArray[Any]]:  # fmt: skip
        """Return gradients of q, k, v, bias and softmax's offsets."""
        sink = [given[4]] if self.softmax else []
        packed = self.packed(given[:3])
        spare = [np.zeros(0, np.float32)] * 4
        operands = [*packed, given[3], *sink, made[1], made[2], made[0], gradient,
                    *self.sequences(), *spare]  # fmt: skip
        shapes = [shape_of(x) for x in (*packed, given[3], *sink)]
        result = f"({', '.join(shapes)}, u8[{_WORKSPACE}])"
        found = run("te_fused_attn_backward_ffi", operands, result, self.attributes())
        bias, sinks = found[3], found[4] if sink else np.zeros(0)
        return [*self.unpacked(found[:3]), bias, sinks]

    def unpacked(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return q, k and v of how the call has them."""
        if self.layout == "packed":
            return [parts[0][:, :, n] for n in range(3)]
        if self.layout == "kv packed":
            return [parts[0], parts[1][:, :, 0], parts[1][:, :, 1]]
        return list(parts)


def _text(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))


def run(
    target: str, given: Sequence[NDArray[Any]], result: str, attributes: str
) -> list[NDArray[Any]]:
    """Return what a call with a typed configuration gives."""
    return evaluated(text_of(target, given, result, attributes), *given)


def text_of(target: str, given: Sequence[NDArray[Any]], result: str, attributes: str) -> str:
    """Return a module of one call with a typed configuration."""
    said = f"api_version=API_VERSION_TYPED_FFI, backend_config={attributes}"
    return text_of_call(target, given, result, line=said)
