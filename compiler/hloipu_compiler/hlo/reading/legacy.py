"""Dialects that XLA no longer reads, rewritten to today's form while they are read.

Here are the rewrites of one attribute list; those that add instructions are in `legacy_forms.py`,
those of literals in `literal_legacy.py`. Dates: history of openxla/xla `hlo_parser.cc`.
"""

PAIRS = tuple[tuple[str, str], ...]

COMPARISONS = {
    "less-than": "LT", "greater-than": "GT", "equal-to": "EQ", "not-equal-to": "NE",
    "less-than-or-equal-to": "LE", "greater-than-or-equal-to": "GE",
}  # fmt: skip
"""Opcodes until March 2019."""

_OPCODES = {"all-reduce-scatter": "reduce-scatter", "generate-token": "after-all"}
_RENAMED = {
    "output_window_dims": "offset_dims",
    "elided_window_dims": "collapsed_slice_dims",
    "gather_dims_to_operand_dims": "start_index_map",
    "window_bounds": "slice_sizes",
    "all_reduce_id": "channel_id",
    "thread_name": "async_execution_thread",
    "original_value": "origin",
}
_DROPPED = frozenset({"outer_dimension_partitions", "async_group_id", "barrier"})
_OLD_KEYS = _RENAMED.keys() | _DROPPED | {"is_cross_program_prefetch"}


def modern_attributes(opcode: str, pairs: PAIRS) -> tuple[str, PAIRS]:
    """Return today's opcode and attributes for those of an older dump."""
    if opcode in COMPARISONS and not any(key == "direction" for key, _ in pairs):
        return "compare", (("direction", COMPARISONS[opcode]), *pairs)
    opcode = _OPCODES.get(opcode, opcode)
    if not any(key in _OLD_KEYS for key, _ in pairs):
        return opcode, pairs
    kept = []
    for key, value in pairs:
        if key == "is_cross_program_prefetch":
            kept += [("cross_program_prefetch_index", "0")] if value == "true" else []
        elif key not in _DROPPED:
            kept.append((_RENAMED.get(key, key), value))
    return opcode, tuple(kept)
