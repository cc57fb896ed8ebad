"""Attention of cuDNN, forward and backward, as JAX and XLA:GPU call it.

Operands, results and configuration: jax-ml/jax: jax/_src/cudnn/fused_attention_stablehlo.py;
openxla/xla: xla/service/gpu/backend_configs.proto (CudnnfMHABackendConfig). Results and gradients
stand as batch x heads x sequence x size, whatever operands do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.attention_blocks import (
    BlockedAttention,
    GradientInputs,
    backward_in_blocks,
    forward_in_blocks,
)
from hloipu_compiler.vendor.attention_masks import Band, Mask, Sequences

_MASKS = ("NO_MASK", "PADDING", "CAUSAL", "PADDING_CAUSAL", "ALIBI")
_PLAIN = "write the attention out: jax.nn.dot_product_attention(…, implementation='xla')"
_FORWARD = (
    "__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaSoftmaxDropout",
    "__cudnn$fmhaScaleBiasSoftmaxDropout",
)  # fmt: skip
_BACKWARD = tuple(f"{name}Backward" for name in _FORWARD)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A call's operands after q, k, v and what a gradient is computed from."""

    call: Call
    settings: Call
    q: Value
    k: Value
    v: Value
    heads_first: bool
    """Whether heads stand before sequences in operands."""

    @property
    def several(self) -> int:
        """The most sequences in a row of the batch."""
        return max(1, self.settings.integer("max_seg_per_batch", 1))

    @property
    def mask_type(self) -> str:
        """The call's mask."""
        mask_type = self.settings.word("mask_type", *_MASKS, default="NO_MASK")
        if mask_type == "ALIBI":
            raise self.call.unsupported("its mask is ALIBI", _PLAIN)
        if self.settings.flag("is_causal_mask", default=False):  # of versions without mask_type
            return "CAUSAL"
        return mask_type

    @property
    def band(self) -> Band:
        """The band of keys that a query sees, besides padding."""
        window = self.settings.integer("sliding_window_length", 0)
        left = window - 1 if window > 0 else -1
        return Band(left, 0 if self.mask_type.endswith("CAUSAL") else -1)

    @property
    def lengths_count(self) -> int:
        """Operands that say lengths and offsets."""
        several = self.several > 1
        return 2 * (several or self.mask_type.startswith("PADDING")) + 2 * several

    def sequences(self, lengths_and_starts: Sequence[Value]) -> Sequences | None:
        """Return where sequences are that stand one behind the other; None: they do not."""
        if self.several == 1:
            return None
        batch, queries, heads, size = self.q.dims
        if heads != self.k.dims[2]:
            raise self.call.unsupported(
                "sequences stand one behind the other, with several heads to one of keys", _PLAIN
            )
        count = batch * self.several
        numbers = [
            self._first(lengths_or_starts, count) for lengths_or_starts in lengths_and_starts
        ]
        starts = [lengths_or_starts / float(heads * size) for lengths_or_starts in numbers[2:]]
        return Sequences(
            batch, queries, self.k.dims[1], (numbers[0], numbers[1]), (starts[0], starts[1])
        )

    def _first(self, x: Value, count: int) -> Value:
        count_in_operand = math.prod(x.dims)
        self.call.need(
            count_in_operand >= count, f"it says {count_in_operand} sequences, and has {count}"
        )
        return x.reshaped((count_in_operand,)).sliced(0, 0, count).converted("s32")

    def mask(self, lengths_and_starts: Sequence[Value]) -> Mask:
        """Return what queries see."""
        sequences = self.sequences(lengths_and_starts)
        if sequences is not None:
            return sequences.mask(self.band)
        batch, queries, _, _ = self.q.dims
        lengths = tuple(self._first(value, batch) for value in lengths_and_starts)
        pair = (lengths[0], lengths[1]) if lengths else None
        return Mask(self.band, queries, self.k.dims[1], pair)

    def attention(
        self, bias: Value | None, lengths_and_starts: Sequence[Value]
    ) -> BlockedAttention:
        call, settings = self.call, self.settings
        rate = settings.number("dropout_rate", 0)
        call.need(0 <= rate < 1, f"its dropout_rate is {rate}")
        seed = None
        if rate > 0:
            number = settings.integer("seed", 0) % 2**64
            low, high = (call.text.full("u32", (1,), n) for n in (number % 2**32, number >> 32))
            seed = low.concatenated([high], 0)
        if bias is not None:
            wanted = (self.q.dims[0], self.q.dims[2], self.q.dims[1], self.k.dims[1])
            fits = bias.rank == 4 and all(
                n in (1, most) for n, most in zip(bias.dims, wanted, strict=True)
            )
            call.need(fits, f"its bias {bias.dims} does not go with {wanted}")
        return BlockedAttention(
            self.q, self.k, self.v, self.mask(lengths_and_starts), settings.number("fmha_scale"),
            bias, seed=seed, share=1 - rate,
        )  # fmt: skip


def _parts(call: Call, key: str) -> _Parts:
    """Return a call's operands as batch x sequence x heads x size, by the first of its products."""
    settings = call.section("cudnn_fmha_backend_config")
    call.need(len(call.operands) > 2, "it has no queries, keys and values")
    if settings.flag("is_paged_attention", default=False):
        raise call.unsupported("its keys lie in pages", _PLAIN)
    if not settings.flag("is_flash_attention", default=False):
        raise call.unsupported("its softmax is kept whole", "print the module with a later XLA")
    numbers = settings.section(key)
    sides = [tuple(numbers.integers(f"{side}_batch_dimensions")) for side in ("lhs", "rhs")]
    call.need(sides[0] == sides[1] and sides[0] in ((0, 1), (0, 2)),
              f"its {key} are those of no attention")  # fmt: skip
    heads_first = sides[0] == (0, 1)
    q, k, v = (_ordered(call, value, heads_first) for value in call.operands[:3])
    same = q.dims[0] == k.dims[0] == v.dims[0] and q.dims[3] == k.dims[3]
    call.need(same and k.dims[:3] == v.dims[:3], "its queries, keys and values differ in size")
    call.need(q.dims[2] % k.dims[2] == 0, "its heads are not a multiple of those of keys")
    return _Parts(call, settings, q, k, v, heads_first)


def _ordered(call: Call, x: Value, heads_first: bool) -> Value:
    call.need(x.rank == 4, f"an operand has {x.rank} dimensions, and is to have 4")
    return x.transposed((0, 2, 1, 3)) if heads_first else x


@formula(*_FORWARD)
def _forward(call: Call) -> Sequence[Value]:
    """Return the result, statistics where the call has them, a workspace."""
    parts = _parts(call, "bmm1_dot_dimension_numbers")
    has_bias = "Bias" in call.target
    call.takes(3 + has_bias + parts.lengths_count)
    lengths_and_starts = call.operands[3 + has_bias :]
    attention_of_call = parts.attention(call.operands[3] if has_bias else None, lengths_and_starts)
    attention, statistics = forward_in_blocks(attention_of_call)
    sequences = parts.sequences(lengths_and_starts)
    if sequences is not None:
        attention = sequences.checked(attention)
    results = [attention.transposed((0, 2, 1, 3))]
    if len(call.results) > 1 and call.results[1][0] == "f32":
        dims = call.results[1][1]
        count = math.prod(dims) // math.prod(statistics.dims)
        call.need(count == parts.several, f"its statistics are no {statistics.dims}")
        if count > 1:
            zeros = call.text.full(
                "f32", ((count - 1) * statistics.dims[0], *statistics.dims[1:]), 0
            )
            statistics = statistics.concatenated([zeros], 0)
        results.append(statistics.reshaped(dims))
    return [*results, *call.workspaces(len(results))]


@formula(*_BACKWARD)
def _backward(call: Call) -> Sequence[Value]:
    """Return gradients of queries, keys, values and the bias, and a workspace."""
    parts = _parts(call, "bmm2_grad_gemm2_dot_dimension_numbers")
    has_bias = "Bias" in call.target
    call.takes(6 + has_bias + parts.lengths_count)
    statistics, gradient, *remaining = call.operands[3:]
    bias = remaining.pop(0) if has_bias else None
    result, *lengths_and_starts = remaining
    attention_of_call = parts.attention(bias, lengths_and_starts)
    batch, queries, heads, _ = parts.q.dims
    count = batch * heads * queries
    call.need(math.prod(statistics.dims) == count * parts.several and statistics.kind == "f32",
              f"its statistics are not f32 of {(batch, heads, queries)}")  # fmt: skip
    flat = statistics.reshaped((math.prod(statistics.dims),)).sliced(0, 0, count)
    gradient_and_result = [_ordered(call, array, parts.heads_first) for array in (gradient, result)]
    wanted = (batch, queries, heads, parts.v.dims[3])
    call.need(
        all(array.dims == wanted for array in gradient_and_result),
        f"its result and gradient are no {wanted}",
    )
    statistics = flat.reshaped((batch, heads, queries))
    gradient_rows, result_rows = gradient_and_result
    given_rows = GradientInputs(gradient_rows, result_rows, statistics)
    gradients = backward_in_blocks(attention_of_call, given_rows)
    sequences = parts.sequences(lengths_and_starts)
    grads = [array.converted(parts.q.kind) for array in (gradients.q, gradients.k, gradients.v)]
    if sequences is not None:
        grads = [sequences.checked(array) for array in grads]
    out = [array.transposed((0, 2, 1, 3)) for array in grads]
    if gradients.bias is not None and len(call.results) > 4:
        out.append(gradients.bias.converted(call.results[3][0]))
    return [*out, *call.workspaces(len(out))]
