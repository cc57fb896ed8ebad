"""The kind of every attribute's value: key -> kind, for instructions and headers.

Sources: openxla/xla `xla/hlo/parser/hlo_parser.cc` and `xla/hlo/ir/hlo_instructions.cc`. A key that
is not here is kept as raw text and printed back as it stood.
"""

from enum import Enum


class AttributeKind(Enum):
    """The forms that attribute values take in the text."""

    INTEGER = "an integer"
    FLOAT = "a number"
    BOOLEAN = "true or false"
    STRING = "a quoted string"
    WORD = "a word"
    INTEGERS = "a list of integers like {0,1}"
    BOOLEANS = "true, false, or a list like {true,false}"
    WORDS = "a list of words like {highest,default}"
    INTEGER_LISTS = "a list of lists like {{0,1},{1,0}}"
    SLICES = "a list of ranges like {[0:4], [0:8:2]}"
    WINDOW = "a window like {size=3x3 stride=2x2 pad=0_1x0_1}"
    LABELS = "dimension labels like b01f_01io->b01f"
    PADDING = "paddings like 0_1x2_2_1"
    COMPUTATION = "a computation"
    COMPUTATIONS = "a list of computations like {%a, %b}"
    INSTRUCTIONS = "a list of instruction names like {%a, %b}"
    REPLICA_GROUPS = "groups like {{0,1},{2,3}}, [2,2]<=[4] or mesh['a'=4] {'a'}"
    SHAPE = "a shape"
    SHAPES = "a list of shapes like {f32[2]{0}, s32[]}"
    PROGRAM_SHAPE = "shapes like {(f32[2]{0})->f32[2]{0}}"
    ALIASES = "aliases like {{0}: (1, {}, may-alias)}"
    DONORS = "donors like {(0, {}), (1, {0})}"
    TYPED_LITERAL = "a shape and a literal like s32[2]{0} {1, 2}"
    RAW = "a quoted string or a balanced {…}"


K = AttributeKind

INSTRUCTION_KINDS: dict[str, AttributeKind] = {
    # on every instruction
    "metadata": K.RAW, "sharding": K.RAW, "frontend_attributes": K.RAW, "backend_config": K.RAW,
    "control-predecessors": K.INSTRUCTIONS, "parameter_replication": K.BOOLEANS,
    "statistics": K.RAW, "origin": K.RAW, "original_value": K.RAW, "result_accuracy": K.RAW,
    "debug_attributes": K.RAW, "outer_dimension_partitions": K.INTEGERS,
    # numbers and dimensions
    "index": K.INTEGER, "iota_dimension": K.INTEGER, "dimensions": K.INTEGERS, "slice": K.SLICES,
    "dynamic_slice_sizes": K.INTEGERS, "padding": K.PADDING, "window": K.WINDOW,
    "exponent_bits": K.INTEGER, "mantissa_bits": K.INTEGER, "inferred_dimension": K.INTEGER,
    "offset_dims": K.INTEGERS, "collapsed_slice_dims": K.INTEGERS, "start_index_map": K.INTEGERS,
    "index_vector_dim": K.INTEGER, "slice_sizes": K.INTEGERS, "operand_batching_dims": K.INTEGERS,
    "start_indices_batching_dims": K.INTEGERS, "indices_are_sorted": K.BOOLEAN,
    "update_window_dims": K.INTEGERS, "inserted_window_dims": K.INTEGERS,
    "scatter_dims_to_operand_dims": K.INTEGERS, "input_batching_dims": K.INTEGERS,
    "scatter_indices_batching_dims": K.INTEGERS, "unique_indices": K.BOOLEAN,
    "output_window_dims": K.INTEGERS, "elided_window_dims": K.INTEGERS,
    "gather_dims_to_operand_dims": K.INTEGERS, "window_bounds": K.INTEGERS,
    "is_stable": K.BOOLEAN, "k": K.INTEGER, "largest": K.BOOLEAN, "num_carries": K.INTEGER,
    "is_reverse": K.BOOLEAN, "is_associative": K.BOOLEAN, "direction": K.WORD, "type": K.WORD,
    # linear algebra
    "lhs_batch_dims": K.INTEGERS, "lhs_contracting_dims": K.INTEGERS,
    "rhs_batch_dims": K.INTEGERS, "rhs_contracting_dims": K.INTEGERS,
    "lhs_ragged_dims": K.INTEGERS, "rhs_group_dims": K.INTEGERS,
    "operand_precision": K.WORDS, "algorithm": K.WORD, "sparsity": K.RAW,
    "sparsity_config": K.RAW, "dim_labels": K.LABELS, "feature_group_count": K.INTEGER,
    "batch_group_count": K.INTEGER, "convolution_kind": K.WORD, "fft_type": K.WORD,
    "fft_length": K.INTEGERS, "lower": K.BOOLEAN, "left_side": K.BOOLEAN,
    "unit_diagonal": K.BOOLEAN, "transpose_a": K.WORD, "epsilon": K.FLOAT,
    "feature_index": K.INTEGER, "distribution": K.WORD, "delta": K.INTEGER,
    # calls
    "to_apply": K.COMPUTATION, "calls": K.COMPUTATION, "condition": K.COMPUTATION,
    "body": K.COMPUTATION, "select": K.COMPUTATION, "scatter": K.COMPUTATION,
    "true_computation": K.COMPUTATION, "false_computation": K.COMPUTATION,
    "branch_computations": K.COMPUTATIONS, "called_computations": K.COMPUTATIONS,
    "kind": K.WORD, "is_composite": K.BOOLEAN, "output_to_operand_aliasing": K.ALIASES,
    "custom_call_target": K.STRING, "api_version": K.WORD, "schedule": K.WORD,
    "operand_layout_constraints": K.SHAPES, "custom_call_has_side_effect": K.BOOLEAN,
    "padding_type": K.WORD, "literal": K.TYPED_LITERAL, "opaque": K.STRING,
    # host, channels, collectives
    "infeed_config": K.STRING, "outfeed_config": K.STRING, "outfeed_shape": K.SHAPE,
    "channel_id": K.INTEGER, "is_host_transfer": K.BOOLEAN, "replica_groups": K.REPLICA_GROUPS,
    "use_global_device_ids": K.BOOLEAN, "constrain_layout": K.BOOLEAN, "mode": K.WORD,
    "source_target_pairs": K.INTEGER_LISTS, "has_dynamic_root": K.BOOLEAN,
    "all_reduce_id": K.INTEGER, "replica_group_ids": K.INTEGERS, "barrier": K.STRING,
    "async_execution_thread": K.STRING, "async_group_id": K.INTEGER, "thread_name": K.STRING,
    "cross_program_prefetch_index": K.INTEGER, "is_cross_program_prefetch": K.BOOLEAN,
    "domain": K.RAW, "channel_name": K.STRING, "cost_estimate_ns": K.INTEGER,
}  # fmt: skip

MODULE_KINDS: dict[str, AttributeKind] = {
    "is_scheduled": K.BOOLEAN, "entry_computation_layout": K.PROGRAM_SHAPE,
    "input_output_alias": K.ALIASES, "buffer_donor": K.DONORS,
    "alias_passthrough_params": K.BOOLEAN, "replica_count": K.INTEGER, "num_partitions": K.INTEGER,
    "allow_spmd_sharding_propagation_to_parameters": K.BOOLEANS,
    "allow_spmd_sharding_propagation_to_output": K.BOOLEANS, "frontend_attributes": K.RAW,
    "origin_recovery_table": K.RAW, "debug_attributes": K.RAW,
}  # fmt: skip

COMPUTATION_KINDS = frozenset({K.COMPUTATION, K.COMPUTATIONS})
