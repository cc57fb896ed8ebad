"""Groups of participants of a collective.

Participants are numbered replica * partitions + partition. How `replica_groups` is read depends on
`channel_id` and `use_global_device_ids`, as in openxla/xla
`xla/service/collective_ops_utils.cc` (GetCollectiveOpGroupMode).
"""

from hloipu_compiler.ir.graph import Instruction
from hloipu_runtime.errors import UsageError

Groups = tuple[tuple[int, ...], ...]

_HAVE_GLOBAL_IDS = ("all-reduce", "all-gather", "reduce-scatter")
"""Opcodes that have `use_global_device_ids`; a channel makes the others' ids partitions."""


def groups_of(instruction: Instruction, replicas: int, partitions: int) -> Groups:
    """Return the groups of a collective, members in order; participants in none stand alone.

    Raises UsageError E3104 where they name ids that are not there.
    """
    attributes = instruction.attributes
    channel = attributes.integer("channel_id") > 0
    written = tuple(group for group in attributes.replica_groups().groups if group)
    permutes = "source_target_pairs" in attributes
    if permutes:
        written = ()
    if channel and (permutes or not instruction.opcode.startswith(_HAVE_GLOBAL_IDS)):
        chosen = _checked(instruction, written, partitions)
        return tuple(
            tuple(r * partitions + p for p in group) for r in range(replicas) for group in chosen
        )
    if channel and attributes.flag("use_global_device_ids"):
        return _checked(instruction, written, replicas * partitions)
    chosen = _checked(instruction, written, replicas)
    if channel:
        return tuple(
            tuple(r * partitions + p for r in group for p in range(partitions)) for group in chosen
        )
    return tuple(
        tuple(r * partitions + p for r in group) for p in range(partitions) for group in chosen
    )


def pairs_of(
    instruction: Instruction, replicas: int, partitions: int
) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom at a collective permutation.

    Raises UsageError E3104 where a pair names a participant that is not there.
    """
    channel = instruction.attributes.integer("channel_id") > 0
    pairs = tuple(instruction.attributes.pairs("source_target_pairs"))
    _checked(instruction, pairs, partitions if channel else replicas)
    if channel:
        return tuple(
            (r * partitions + a, r * partitions + b) for r in range(replicas) for a, b in pairs
        )
    return tuple(
        (a * partitions + p, b * partitions + p) for p in range(partitions) for a, b in pairs
    )


def _checked(instruction: Instruction, groups: Groups, available: int) -> Groups:
    """Return groups of ids that are there; of none written, one of all."""
    needed = max((max(group) + 1 for group in groups), default=0)
    if needed > available:
        raise UsageError(
            "E3104",
            f"collective {instruction.name!r} names {needed} ids, {available} of their kind are "
            "there",
            hint=f"run it with replicas={needed}, or as many partitions",
        )
    return groups or (tuple(range(available)),)
