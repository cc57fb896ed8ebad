"""Participants of a collective; see `analysis.participant_groups`."""

from hloipu_compiler.analysis.participant_groups import groups_of
from hloipu_compiler.interpret.planning.site import Site
from hloipu_runtime.errors import UsageError
from hloipu_runtime.simulate.run.meeting import Meeting, MeetingError

__all__ = ["Meeting", "MeetingError", "group_of", "is_member", "permutation_of"]


def group_of(site: Site) -> list[int]:
    """Return the participants that this one meets at a collective, in group order.

    A participant in no group stands alone. Raises UsageError where groups name ids that are not
    there.
    """
    effects = site.effects
    groups = groups_of(site.instruction, effects.replicas, effects.partitions)
    me = effects.participant
    return list(next((group for group in groups if me in group), (me,)))


def is_member(site: Site) -> bool:
    """Whether a group names this participant; no groups are one group of all."""
    groups = site.attributes.replica_groups().groups
    effects = site.effects
    channel = site.attributes.integer("channel_id") > 0
    me = effects.partition if channel else effects.replica
    return not groups or any(me in group for group in groups)


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
