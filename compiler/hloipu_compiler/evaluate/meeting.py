"""Who belongs together at a collective.

Participants are numbered replica * partitions + partition. How `replica_groups` is read depends on
`channel_id` and `use_global_device_ids`, as in openxla/xla
`xla/service/collective_ops_utils.cc` (GetCollectiveOpGroupMode).
"""

from hloipu_compiler.evaluate.site import Site
from hloipu_runtime.errors import UsageError
from hloipu_runtime.sim.meeting import Meeting, MeetingError

__all__ = ["Meeting", "MeetingError", "group_of", "is_member", "permutation_of"]


def group_of(site: Site) -> list[int]:
    """Return the participants that this one meets at a collective, in group order.

    A participant in no group stands alone. Raises UsageError where groups name ids that are not
    there.
    """
    effects, attributes = site.effects, site.attributes
    replica, partition, partitions = effects.replica, effects.partition, effects.partitions
    channel = attributes.integer("channel_id") > 0
    groups = attributes.replica_groups().groups
    if "source_target_pairs" in attributes:
        by_partition, groups = channel, ()
    else:
        by_partition = channel and not site.instruction.opcode.startswith(_HAVE_GLOBAL_IDS)
    if by_partition:
        members = _mine(site, groups, partition, partitions)
        return [replica * partitions + p for p in members]
    if channel and attributes.flag("use_global_device_ids"):
        return list(_mine(site, groups, effects.participant, effects.replicas * partitions))
    members = _mine(site, groups, replica, effects.replicas)
    across = range(partitions) if channel and "source_target_pairs" not in attributes else None
    return [r * partitions + p for r in members for p in across or (partition,)]


_HAVE_GLOBAL_IDS = ("all-reduce", "all-gather", "reduce-scatter")
"""Opcodes that have `use_global_device_ids`; a channel makes the others' ids partitions."""


def is_member(site: Site) -> bool:
    """Whether a group names this participant; no groups are one group of all."""
    groups = site.attributes.replica_groups().groups
    effects = site.effects
    channel = site.attributes.integer("channel_id") > 0
    me = effects.partition if channel else effects.replica
    return not groups or any(me in group for group in groups)


def _mine(
    site: Site, groups: tuple[tuple[int, ...], ...], me: int, available: int
) -> tuple[int, ...]:
    """Return the group that names `me`, of ids below `available`."""
    if not groups:
        return tuple(range(available))
    highest = max((max(group) for group in groups if group), default=0)
    if highest >= available:
        raise _too_few(site, highest + 1, available)
    return next((group for group in groups if me in group), (me,))


def permutation_of(site: Site) -> list[tuple[int, int]]:
    """Return source_target_pairs as places within `group_of`.

    Raises UsageError where a pair names a participant that is not there.
    """
    pairs = site.attributes.pairs("source_target_pairs")
    members = len(group_of(site))
    highest = max((max(pair) for pair in pairs), default=0)
    if highest >= members:
        raise _too_few(site, highest + 1, members)
    return list(pairs)


def _too_few(site: Site, needed: int, available: int) -> UsageError:
    return UsageError(
        "E3104",
        f"collective {site.instruction.name!r} names {needed} ids, "
        f"{available} of their kind are there",
        hint=f"evaluate with replicas={needed}, or as many partitions",
    )
