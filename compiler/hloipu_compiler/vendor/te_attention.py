"""Fused attention of NVIDIA's Transformer Engine, forward and backward.

Operands, results and attributes: NVIDIA/TransformerEngine:
transformer_engine/jax/cpp_extensions/attention.py and jax/csrc/extensions/attention.cpp; numbers of
layouts, biases, masks and softmaxes: transformer_engine/common/include/transformer_engine/
fused_attn.h; what each means: tests/jax/test_fused_attn.py and common/fused_attn/.
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

# qkv_layout: how many arrays hold q, k and v, and whether sequences stand one behind the other.
_LAYOUTS = {5: (1, False), 7: (2, False), 9: (3, False), 10: (1, True), 12: (2, True),
            14: (3, True)}  # fmt: skip
_NO_BIAS, _BEFORE_SCALE, _AFTER_SCALE = 0, 1, 2
_PADDED, _CAUSAL, _FROM_END = (1, 3, 5), (2, 3, 4, 5), (4, 5)
"""Kinds of mask_type: with padding, causal, causal from the last query and key."""
_SHARED_OPERANDS = 13
"""Of a forward call of versions that know no softmax but the usual."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes by a call's attributes, and how its arrays are laid out."""

    batch: int
    queries: int
    keys: int
    heads: int
    groups: int
    size: int
    value_size: int
    arrays: int
    is_ragged: bool
    segments: int


def _sizes(call: Call) -> _Sizes:
    layout = call.integer("qkv_layout")
    if layout not in _LAYOUTS:
        raise call.unsupported(
            f"its qkv_layout {layout} is none of {', '.join(map(str, _LAYOUTS))}",
            "print the module with arrays of batch x sequence x heads x size",
        )
    arrays, is_ragged = _LAYOUTS[layout]
    size = call.integer("qk_head_dim" if call.has("qk_head_dim") else "head_dim")
    sizes = _Sizes(
        batch=call.integer("input_batch"),
        queries=call.integer("q_max_seqlen"),
        keys=call.integer("kv_max_seqlen"),
        heads=call.integer("attn_heads"),
        groups=call.integer("num_gqa_groups"),
        size=size,
        value_size=call.integer("v_head_dim", size),
        arrays=arrays,
        is_ragged=is_ragged,
        segments=call.integer("max_segments_per_seq", 1) if is_ragged else 1,
    )
    numbers = (sizes.batch, sizes.queries, sizes.keys, sizes.heads, sizes.groups, size)
    positive = all(n > 0 for n in (*numbers, sizes.value_size, sizes.segments))
    call.need(positive, "a size among its attributes is not positive")
    call.need(sizes.heads % sizes.groups == 0, "its heads are not a multiple of its groups")
    return sizes


def _apart(call: Call, sizes: _Sizes, packed_arrays: Sequence[Value]) -> list[Value]:
    """Return q, k and v as batch x sequence x heads x size each."""
    q, k, v = (sizes.queries, sizes.heads), (sizes.keys, sizes.groups), sizes.value_size
    dims = [(sizes.batch, *q, sizes.size), (sizes.batch, *k, sizes.size), (sizes.batch, *k, v)]
    first = 3 - sizes.arrays
    if first:
        alike = len({n[1:] for n in dims[first - 1 :]}) == 1
        call.need(sizes.arrays > 1 or alike, "packed queries, keys and values differ in size")
        call.need(sizes.size == v, "packed keys and values differ in size")
    arrays = []
    for n in range(sizes.arrays):
        count = 3 - n if n == sizes.arrays - 1 else 1
        arrays += _unpacked(call, packed_arrays[n], dims[n], count)
    return arrays


def _unpacked(call: Call, x: Value, dims: tuple[int, ...], count: int) -> list[Value]:
    """Return the arrays that one holds, which differ in a dimension before heads and sizes."""
    call.need(math.prod(x.dims) == count * math.prod(dims),
              f"an operand of {x.dims} is no {count} times {dims}")  # fmt: skip
    if count == 1:
        return [x.reshaped(dims)]
    stacked = x.reshaped((*dims[:2], count, *dims[2:]))
    return [stacked.sliced(2, n, n + 1).reshaped(dims) for n in range(count)]


def _packed(parts: Sequence[Value], dims: Sequence[int]) -> Value:
    """Return gradients as the operand that held several."""
    if len(parts) == 1:
        return parts[0].reshaped(dims)
    rows = [part.reshaped((*part.dims[:2], 1, *part.dims[2:])) for part in parts]
    return rows[0].concatenated(rows[1:], 2).reshaped(dims)


def _mask(call: Call, sizes: _Sizes, lengths: Sequence[Value], starts: Sequence[Value]) -> Mask:
    kind = call.integer("mask_type")
    call.need(kind in range(6), f"its mask_type is {kind}, and is to be 0 to 5")
    from_end = call.flag("bottom_right_diagonal", kind in _FROM_END)
    call.need(from_end or kind not in _FROM_END, "its mask and its diagonal start at other corners")
    call.need(not (from_end and kind in (2, 3)), "its mask and its diagonal end at other corners")
    left, right = (call.integer(f"window_size_{side}", -1) for side in ("left", "right"))
    call.need(left >= -1 and right >= -1, "a window's size is -1, 0 or more")
    if kind in _CAUSAL:
        call.need(right <= 0, f"a causal mask sees nothing later, and its window {right} more")
        right = 0
    band = Band(left, right, from_end)
    if not sizes.is_ragged:
        if kind not in _PADDED:
            return Mask(band, sizes.queries, sizes.keys)
        counts = [_lengths(call, operand, sizes.batch) for operand in lengths]
        return Mask(band, sizes.queries, sizes.keys, (counts[0], counts[1]))
    call.need(kind in _PADDED, "sequences of several lengths need a mask with padding")
    return _sequences(call, sizes, lengths, starts).mask(band)


def _sequences(
    call: Call, sizes: _Sizes, lengths: Sequence[Value], starts: Sequence[Value]
) -> Sequences:
    """Return where sequences that stand one behind the other begin, and how long they are."""
    count = sizes.batch * sizes.segments
    counts = [_lengths(call, operand, count) for operand in lengths]
    begun = [_first(call, operand, count) for operand in starts]
    return Sequences(
        sizes.batch, sizes.queries, sizes.keys, (counts[0], counts[1]), (begun[0], begun[1])
    )


def _first(call: Call, x: Value, count: int) -> Value:
    """Return the first of some whole numbers, s32[count]."""
    size = math.prod(x.dims)
    call.need(size >= count, f"it has {size} offsets for {count} sequences")
    return x.reshaped((size,)).sliced(0, 0, count).converted("s32")


def _lengths(call: Call, x: Value, count: int) -> Value:
    """Return s32[count], the lengths of sequences whose sums are given."""
    sums = _first(call, x, count + 1)
    return sums.sliced(0, 1, count + 1) - sums.sliced(0, 0, count)


def _attention_of(
    call: Call, sizes: _Sizes, packed_arrays: Sequence[Value], bias: Value, sink: Value | None,
    mask: Mask,
) -> BlockedAttention:  # fmt: skip
    q, k, v = _apart(call, sizes, packed_arrays)
    kind = call.integer("bias_type")
    if kind not in (_NO_BIAS, _BEFORE_SCALE, _AFTER_SCALE):
        raise call.unsupported(f"its bias_type is {kind}", "give the bias as an array, bias_type 2")
    softmax = call.integer("softmax_type", 0)
    call.need(softmax in (0, 1, 2), f"its softmax_type is {softmax}, and is to be 0, 1 or 2")
    if softmax:
        call.need(sink is not None and math.prod(sink.dims) == sizes.heads,
                  f"its softmax_offset is no {sizes.heads} numbers")  # fmt: skip
    used = sink.wide().reshaped((sizes.heads,)) if sink is not None and softmax else None
    return BlockedAttention(
        q, k, v, mask, call.number("scaling_factor"),
        _bias(call, sizes, bias) if kind else None, kind == _BEFORE_SCALE, used,
    )  # fmt: skip


def _bias(call: Call, sizes: _Sizes, bias: Value) -> Value:
    """Return a bias as 1 or batch x 1 or heads x 1 or queries x 1 or keys."""
    call.need(bias.rank >= 4, f"its bias has {bias.rank} dimensions, and is to have 4")
    dims = (math.prod(bias.dims[:-3]), *bias.dims[-3:])
    wanted = (sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    fits = all(n in (1, most) for n, most in zip(dims, wanted, strict=True))
    call.need(fits, f"its bias of {dims} does not go with {wanted}")
    return bias.reshaped(dims)


def _with_dropout(call: Call, attention: BlockedAttention, state: Value) -> BlockedAttention:
    """Return attention with the dropout that a state u32[…, 4], or a seed, says."""
    probability = call.number("dropout_probability", 0)
    call.need(0 <= probability < 1, f"its dropout_probability is {probability}")
    if probability == 0 or not call.flag("is_training"):
        return attention
    count = math.prod(state.dims)
    call.need(
        count >= 2 and state.kind in ("u32", "s32"), "its seed is to be two numbers of 32 bits"
    )
    seed = state.reshaped((count,)).sliced(0, 0, 2)
    return BlockedAttention(
        attention.q, attention.k, attention.v, attention.mask, attention.scale, attention.bias,
        attention.bias_is_scaled, attention.sink, seed, 1 - probability,
    )  # fmt: skip


def _nothing(call: Call, kind: str, dims: Sequence[int]) -> Value:
    """Return zeros, for a workspace or an array that says nothing."""
    return call.text.full(kind, tuple(dims), 0)


@formula("te_fused_attn_forward_ffi")
def _forward(call: Call) -> Sequence[Value]:
    """Return result, statistics, the state of dropout, a workspace."""
    call.takes(_SHARED_OPERANDS, _SHARED_OPERANDS + 1)
    q, k, v, bias, *optional = call.operands
    sink = optional.pop(0) if len(call.operands) > _SHARED_OPERANDS else None
    seed, *optional = optional
    lengths, starts = optional[:2], optional[2:4]
    call.need(len(call.results) == 4, "it gives a result, statistics, a state and a workspace")
    result, statistics, state, workspace = call.results
    sizes = _sizes(call)
    mask = _mask(call, sizes, lengths, starts)
    attention = _with_dropout(call, _attention_of(call, sizes, (q, k, v), bias, sink, mask), seed)
    is_whole = _holds_probabilities(call, sizes, *statistics)
    result_rows, numbers = forward_in_blocks(attention)
    if sizes.is_ragged:
        result_rows = _sequences(call, sizes, lengths, starts).checked(result_rows)
    if is_whole:
        saved = whole_probabilities(call, attention)
    else:
        saved = _as_statistics(call, sizes, numbers, statistics[1])
    return [
        result_rows.reshaped(result[1]), saved.reshaped(statistics[1]), _state(call, seed, *state),
        _nothing(call, *workspace),
    ]  # fmt: skip


def whole_probabilities(call: Call, attention: BlockedAttention) -> Value:
    """Return the softmax [batch, heads, queries, keys] in the queries' type."""
    if attention.seed is not None:
        raise call.unsupported(
            "it keeps its softmax, and dropout marks it there",
            "print the module without dropout, or with a later version of Transformer Engine",
        )
    zero = call.text.number("s32", 0)
    part = attention.rows(zero, zero, attention.q.dims[1])
    batch, groups, rows, heads_per_group, keys = part.dims
    probabilities = part.probabilities().transposed((0, 1, 3, 2, 4))
    return probabilities.reshaped((batch, groups * heads_per_group, rows, keys)).converted(
        attention.q.kind
    )


def _holds_probabilities(call: Call, sizes: _Sizes, kind: str, dims: Sequence[int]) -> bool:
    """Whether a call keeps its whole softmax; else a number f32 for each query, or some zeros.

    Kernels for up to 512 tokens keep the one, all others log(sum(exp)).
    """
    statistics_count = sizes.batch * sizes.heads * sizes.queries
    count = math.prod(dims)
    if (
        kind == "f32"
        and count % statistics_count == 0
        and (count == statistics_count or dims[-1] == count // statistics_count)
    ):
        several = sizes.segments if sizes.is_ragged else call.integer("max_segments_per_seq", 1)
        if count // statistics_count in (1, several):
            return False
    call.need(count == statistics_count * sizes.keys and kind in ("f16", "bf16"),
              "its statistics are neither one f32 a query nor its softmax")  # fmt: skip
    if call.integer("softmax_type", 0):
        raise call.unsupported("it keeps a softmax of another kind", "print it with statistics")
    return True


def _as_statistics(call: Call, sizes: _Sizes, x: Value, dims: Sequence[int]) -> Value:
    """Return statistics [batch, heads, queries] as a call's result, more places of it 0."""
    count = math.prod(dims) // math.prod(x.dims)
    if _queries_first(sizes, dims):
        x = x.transposed((0, 2, 1))
    if count == 1:
        return x.reshaped(dims)
    zeros = _nothing(call, x.kind, (*x.dims, count - 1))
    return x.reshaped((*x.dims, 1)).concatenated([zeros], 3)


def _from_statistics(sizes: _Sizes, x: Value) -> Value:
    """Return a call's operand as statistics [batch, heads, queries]."""
    last = math.prod(x.dims) // (sizes.batch * sizes.heads * sizes.queries)
    order = (sizes.heads, sizes.queries)
    is_turned = _queries_first(sizes, x.dims)
    columns = x.reshaped((sizes.batch, *(order[::-1] if is_turned else order), last))
    columns = columns.sliced(3, 0, 1).reshaped(columns.dims[:3])
    return columns.transposed((0, 2, 1)) if is_turned else columns


def _queries_first(sizes: _Sizes, dims: Sequence[int]) -> bool:
    """Whether statistics of sequences one behind the other stand by token."""
    return sizes.is_ragged and tuple(dims[-3:-1]) == (sizes.queries, sizes.heads)


def _state(call: Call, seed: Value, kind: str, dims: Sequence[int]) -> Value:
    """Return a state that begins with a seed of two numbers; its offset is 0."""
    count, seed_count = math.prod(dims), math.prod(seed.dims)
    if count < 2 or seed_count < 2 or kind != seed.kind:
        return _nothing(call, kind, dims)
    begin = seed.reshaped((seed_count,)).sliced(0, 0, 2)
    return begin.concatenated([_nothing(call, kind, (count - 2,))], 0).reshaped(dims)


@formula("te_fused_attn_backward_ffi")
def _backward(call: Call) -> Sequence[Value]:
    """Return gradients, of q, k and v as they are packed, and a workspace."""
    call.takes(_SHARED_OPERANDS + 3, _SHARED_OPERANDS + 4)
    q, k, v, bias, *optional = call.operands
    has_sink = len(call.operands) > _SHARED_OPERANDS + 3
    sink = optional.pop(0) if has_sink else None
    saved, state, result, gradient, *optional = optional
    lengths, starts = optional[:2], optional[2:4]
    call.need(len(call.results) == 5 + has_sink, f"it gives {5 + has_sink} arrays")
    sizes = _sizes(call)
    mask = _mask(call, sizes, lengths, starts)
    attention = _with_dropout(call, _attention_of(call, sizes, (q, k, v), bias, sink, mask), state)
    made_dims = (sizes.batch, sizes.queries, sizes.heads, sizes.value_size)
    for array in (result, gradient):
        call.need(math.prod(array.dims) == math.prod(made_dims), f"a result is no {made_dims}")
    is_whole = _holds_probabilities(call, sizes, saved.kind, saved.dims)
    if is_whole and attention.seed is not None:
        whole_probabilities(call, attention)
    incoming = GradientInputs(
        gradient.reshaped(made_dims),
        None if is_whole else result.reshaped(made_dims),
        None if is_whole else _from_statistics(sizes, saved),
        saved.reshaped((sizes.batch, sizes.heads, sizes.queries, sizes.keys)) if is_whole else None,
    )
    gradients = backward_in_blocks(attention, incoming)
    parts = [gradients.q, *(array.converted(q.kind) for array in (gradients.k, gradients.v))]
    if sizes.is_ragged:
        sequences = _sequences(call, sizes, lengths, starts)
        parts = [sequences.checked(array) for array in parts]
    first = sizes.arrays - 1
    packed = [*parts[:first], _packed(parts[first:], (q, k, v)[first].dims)]
    results = [array.reshaped(dims) for array, (_, dims) in zip(packed, call.results, strict=False)]
    for kind, dims in call.results[len(results) : 3]:
        results.append(_nothing(call, kind, dims))
    results.append(_or_nothing(call, gradients.bias, *call.results[3]))
    if has_sink:
        results.append(_or_nothing(call, gradients.sink, *call.results[4]))
    return [*results, _nothing(call, *call.results[-1])]


def _or_nothing(call: Call, x: Value | None, kind: str, dims: Sequence[int]) -> Value:
    if x is None:
        return _nothing(call, kind, dims)
    call.need(math.prod(x.dims) == math.prod(dims), f"a gradient of {x.dims} is no {tuple(dims)}")
    return x.converted(kind).reshaped(dims)
