"""The one op table: opcode -> operands, attributes and traits.

Sources: openxla/xla `xla/hlo/ir/hlo_opcode.h`, `xla/hlo/parser/hlo_parser.cc`. Shape rules stand in
`hloipu_compiler.inference`, kernels in `hloipu_runtime.kernels`; tests compare their keys with this
table. What the parser, the verifier, the printer, fusion and the evaluator must agree on is here.
"""

from enum import Flag, auto

from hloipu_runtime.frozen import dataclass


class Trait(Flag):
    """Facts about an opcode that several rooms ask for."""

    NONE = 0
    ELEMENTWISE = auto()
    """Each result element depends on the operands' elements at the same place only."""
    COMMUTATIVE = auto()
    SIDE_EFFECT = auto()
    """Must not be removed, duplicated or reordered against its kind."""
    COLLECTIVE = auto()
    ASYNC_START = auto()
    ASYNC_UPDATE = auto()
    ASYNC_DONE = auto()
    DATA_MOVEMENT = auto()
    """Moves or renames elements without computing new ones."""
    CALLER = auto()
    """Runs its computations with its operands as arguments: call, while, conditional, fusion…"""
    APPLIER = auto()
    """Applies a small computation to elements: reduce, map, sort, scatter, all-reduce…"""
    ACCURACY = auto()
    """Takes `result_accuracy`."""
    NEEDS_SHAPE = auto()
    """The text must give the result shape; it cannot be inferred."""
    DYNAMIC = auto()
    """Exists for dimensions whose size is known only while running."""
    LEGACY = auto()
    """Gone from XLA; read from old dumps."""
    RANDOM = auto()


@dataclass(frozen=True, slots=True)
class Op:
    """Operands, attributes and traits of an opcode."""

    name: str
    fewest_operands: int
    most_operands: int | None
    """None: any number."""
    required: frozenset[str]
    optional: frozenset[str]
    traits: Trait

    @property
    def attributes(self) -> frozenset[str]:
        """All attributes of its own, required and optional."""
        return self.required | self.optional


COMMON_ATTRIBUTES = frozenset(
    {
        "metadata", "sharding", "frontend_attributes", "backend_config", "control-predecessors",
        "parameter_replication", "statistics", "origin", "original_value", "debug_attributes",
        "outer_dimension_partitions",
    }
)  # fmt: skip
"""Allowed on every instruction."""

_E, _M, _C = Trait.ELEMENTWISE, Trait.DATA_MOVEMENT, Trait.COLLECTIVE
_ACC, _SHAPE, _APPLY, _CALL = Trait.ACCURACY, Trait.NEEDS_SHAPE, Trait.APPLIER, Trait.CALLER
_FX, _DYN, _OLD = Trait.SIDE_EFFECT, Trait.DYNAMIC, Trait.LEGACY
_COMM, _RNG = Trait.COMMUTATIVE, Trait.RANDOM
_START, _UPDATE, _DONE = Trait.ASYNC_START, Trait.ASYNC_UPDATE, Trait.ASYNC_DONE

_DOT = (
    "lhs_batch_dims lhs_contracting_dims rhs_batch_dims rhs_contracting_dims "
    "operand_precision algorithm"
)
_GROUPS = "replica_groups channel_id"
_REDUCE_GROUPS = f"{_GROUPS} use_global_device_ids constrain_layout mode all_reduce_id"
_GATHER_GROUPS = f"{_GROUPS} use_global_device_ids constrain_layout"
_CONV = (
    "window feature_group_count batch_group_count operand_precision algorithm convolution_kind "
    "sparsity_config"
)
_CUSTOM = (
    "api_version operand_layout_constraints custom_call_has_side_effect to_apply "
    "called_computations output_to_operand_aliasing window dim_labels feature_group_count "
    "batch_group_count padding_type operand_precision schedule literal opaque"
)
_GATHER = (
    "operand_batching_dims start_indices_batching_dims indices_are_sorted "
    "offset_dims collapsed_slice_dims start_index_map slice_sizes "
    "output_window_dims elided_window_dims gather_dims_to_operand_dims window_bounds"
)
_SCATTER = "input_batching_dims scatter_indices_batching_dims indices_are_sorted unique_indices"
_SCATTER_NEEDS = (
    "update_window_dims inserted_window_dims scatter_dims_to_operand_dims index_vector_dim to_apply"
)

# opcode, operands (a number, (fewest, most) with None for any), required, optional, traits
_ROWS: tuple[tuple[str, int | tuple[int, int | None], str, str, Trait], ...] = (
    # elementwise, one operand
    *((name, 1, "", "result_accuracy", _E | _ACC) for name in (
        "acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log "
        "log-plus-one logistic rsqrt sine sinh sqrt tan tanh").split()),
    *((name, 1, "", "", _E) for name in (
        "abs ceil count-leading-zeros floor imag is-finite negate not popcnt real "
        "round-nearest-afz round-nearest-even sign").split()),
    ("convert", 1, "", "", _E | _SHAPE),
    ("bitcast-convert", 1, "", "", _SHAPE),
    ("reduce-precision", 1, "exponent_bits mantissa_bits", "", _E | _SHAPE),
    ("stochastic-convert", 2, "", "", _E | _SHAPE),
    # elementwise, two and three operands
    *((name, 2, "", "", _E | _COMM) for name in (
        "add multiply maximum minimum and or xor mulhi").split()),
    *((name, 2, "", "", _E) for name in (
        "subtract divide remainder power atan2 shift-left shift-right-arithmetic "
        "shift-right-logical complex").split()),
    ("compare", 2, "direction", "type", _E),
    ("select", 3, "", "", _E),
    ("clamp", 3, "", "", _E),
    # data movement
    ("parameter", 0, "", "", _SHAPE),
    ("constant", 0, "", "", _SHAPE),
    ("iota", 0, "iota_dimension", "", _SHAPE),
    ("copy", 1, "", "", _M),
    ("bitcast", 1, "", "", _M | _SHAPE),
    ("opt-barrier", 1, "", "", _M),
    ("domain", 1, "domain", "", _M),
    ("broadcast", 1, "", "dimensions", _M),
    ("reshape", 1, "", "inferred_dimension", _M | _SHAPE),
    ("dynamic-reshape", (1, None), "", "", _M | _SHAPE | _DYN),
    ("transpose", 1, "dimensions", "", _M),
    ("reverse", 1, "dimensions", "", _M),
    ("slice", 1, "slice", "", _M | _SHAPE),
    ("dynamic-slice", (1, None), "dynamic_slice_sizes", "", _M | _SHAPE),
    ("dynamic-update-slice", (2, None), "", "", _M | _SHAPE),
    ("concatenate", (1, None), "dimensions", "", _M),
    ("pad", 2, "padding", "", _M),
    ("gather", 2, "index_vector_dim", _GATHER, _M),
    ("scatter", (3, None), _SCATTER_NEEDS, _SCATTER, _APPLY),
    ("tuple", (0, None), "", "", _M),
    ("get-tuple-element", 1, "index", "", _M),
    ("get-dimension-size", 1, "dimensions", "", _DYN),
    ("set-dimension-size", 2, "dimensions", "", _M | _DYN),
    # reductions, windows, sorting
    ("reduce", (2, None), "dimensions to_apply", "", _APPLY),
    ("reduce-window", (2, None), "to_apply", "window", _APPLY),
    ("select-and-scatter", 3, "select scatter", "window", _APPLY),
    ("sort", (1, None), "", "dimensions is_stable to_apply", _APPLY),
    ("topk", 1, "k", "largest is_stable", Trait.NONE),
    ("map", (1, None), "to_apply", "dimensions", _APPLY),
    ("scan", (0, None), "dimensions num_carries to_apply", "is_reverse is_associative", _APPLY),
    # linear algebra
    ("dot", 2, "", f"{_DOT} sparsity", Trait.NONE),
    ("ragged-dot", 3, "", f"{_DOT} lhs_ragged_dims rhs_group_dims", Trait.NONE),
    ("scaled-dot", 4, "", _DOT, Trait.NONE),
    ("convolution", 2, "dim_labels", _CONV, Trait.NONE),
    ("fft", 1, "fft_type fft_length", "", Trait.NONE),
    ("cholesky", 1, "", "lower", Trait.NONE),
    ("triangular-solve", 2, "", "left_side lower unit_diagonal transpose_a", Trait.NONE),
    ("batch-norm-training", 3, "epsilon feature_index", "", Trait.NONE),
    ("batch-norm-inference", 5, "epsilon feature_index", "", Trait.NONE),
    ("batch-norm-grad", 5, "epsilon feature_index", "", Trait.NONE),
    # random
    ("rng", (1, None), "distribution", "", _RNG | _FX | _SHAPE),
    ("rng-bit-generator", 1, "algorithm", "", _RNG | _SHAPE),
    ("rng-get-and-update-state", 0, "delta", "", _RNG | _FX | _SHAPE),
    # control flow and calls
    ("call", (0, None), "to_apply", "is_composite", _CALL),
    ("while", 1, "condition body", "", _CALL),
    ("conditional", (1, None), "", "true_computation false_computation branch_computations", _CALL),
    ("fusion", (0, None), "calls kind", "output_to_operand_aliasing", _CALL | _SHAPE),
    ("custom-call", (0, None), "custom_call_target", _CUSTOM, _SHAPE),
    # tokens, host, channels
    ("after-all", (0, None), "", "", Trait.NONE),
    ("add-dependency", 2, "", "", _M),
    ("infeed", (0, 1), "", "infeed_config", _FX | _SHAPE),
    ("outfeed", (1, 2), "", "outfeed_config outfeed_shape", _FX | _SHAPE),
    ("send", (1, 2), "", "channel_id is_host_transfer", _FX | _SHAPE),
    ("send-done", 1, "", "channel_id is_host_transfer", _FX | _SHAPE),
    ("recv", (0, 1), "", "channel_id is_host_transfer", _FX | _SHAPE),
    ("recv-done", 1, "", "channel_id is_host_transfer", _FX | _SHAPE),
    # collectives
    ("all-reduce", (1, None), "to_apply", _REDUCE_GROUPS, _C | _APPLY | _SHAPE),
    ("reduce-scatter", (1, None), "to_apply dimensions", _REDUCE_GROUPS, _C | _APPLY | _SHAPE),
    ("all-gather", (1, None), "dimensions", _GATHER_GROUPS, _C | _SHAPE),
    ("all-to-all", (1, None), "", f"dimensions {_GROUPS} constrain_layout", _C | _SHAPE),
    ("ragged-all-to-all", 6, "", _GROUPS, _C | _SHAPE),
    ("collective-permute", (1, None), "source_target_pairs", "channel_id slice_sizes", _C | _SHAPE),
    ("collective-broadcast", (1, None), "", f"{_GROUPS} has_dynamic_root", _C | _SHAPE),
    ("partition-id", 0, "", "", Trait.NONE),
    ("replica-id", 0, "", "", Trait.NONE),
    # asynchronous pairs
    ("all-gather-start", (1, None), "dimensions", _GATHER_GROUPS, _C | _START | _SHAPE),
    ("all-gather-done", 1, "", "", _C | _DONE | _SHAPE),
    ("all-reduce-start", (1, None), "to_apply", _REDUCE_GROUPS, _C | _APPLY | _START | _SHAPE),
    ("all-reduce-done", 1, "", "", _C | _DONE | _SHAPE),
    ("collective-permute-start", (1, None), "source_target_pairs", "channel_id slice_sizes",
     _C | _START | _SHAPE),
    ("collective-permute-done", 1, "", "", _C | _DONE | _SHAPE),
    ("copy-start", 1, "", "cross_program_prefetch_index is_cross_program_prefetch",
     _M | _START | _SHAPE),
    ("copy-done", 1, "", "", _M | _DONE | _SHAPE),
    ("async-start", (0, None), "calls", "async_execution_thread output_to_operand_aliasing "
     "async_group_id thread_name", _CALL | _START | _SHAPE),
    ("async-update", (1, None), "", "calls async_execution_thread async_group_id thread_name",
     _UPDATE | _SHAPE),
    ("async-done", (1, None), "", "calls async_execution_thread async_group_id thread_name",
     _DONE | _SHAPE),
    # removed from XLA; `hlo.legacy` rewrites these to their successors while reading
    ("cross-replica-sum", (1, None), "", "replica_group_ids replica_groups barrier to_apply "
     "channel_id all_reduce_id", _OLD | _SHAPE),
    *((name, 2, "", "", _OLD) for name in (
        "less-than greater-than equal-to not-equal-to less-than-or-equal-to "
        "greater-than-or-equal-to").split()),
    ("tuple-select", 3, "", "", _OLD),
    ("all-reduce-scatter", (1, None), "to_apply dimensions", _REDUCE_GROUPS, _OLD | _SHAPE),
    ("generate-token", 0, "", "", _OLD),
    ("trace", 1, "", "", _OLD | _SHAPE),
    ("host-compute", (0, None), "", "channel_name cost_estimate_ns", _OLD | _SHAPE),
)  # fmt: skip


def _op(row: tuple[str, int | tuple[int, int | None], str, str, Trait]) -> Op:
    name, operands, required, optional, traits = row
    fewest, most = operands if isinstance(operands, tuple) else (operands, operands)
    return Op(name, fewest, most, frozenset(required.split()), frozenset(optional.split()), traits)


OPS: dict[str, Op] = {row[0]: _op(row) for row in _ROWS}
"""Every opcode that hloipu reads."""


def with_trait(trait: Trait) -> frozenset[str]:
    """Return the opcodes that have a trait."""
    return frozenset(name for name, op in OPS.items() if trait in op.traits)


ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
COMMUTATIVE = with_trait(Trait.COMMUTATIVE)
COLLECTIVES = with_trait(Trait.COLLECTIVE)
PRODUCTS = frozenset(("dot", "convolution"))
NEEDS_SHAPE = with_trait(Trait.NEEDS_SHAPE)
LEGACY = with_trait(Trait.LEGACY)
