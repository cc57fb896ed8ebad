"""Where participants meet at a collective: who belongs together, and waiting for them.

Participants are numbered replica * partitions + partition. How `replica_groups` is read depends on
`channel_id` and `use_global_device_ids`, as in openxla/xla
`xla/service/collective_ops_utils.cc` (GetCollectiveOpGroupMode).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition

from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.evaluate.site import Site
from hloipu_runtime.errors import HloipuError, UsageError


class MeetingError(HloipuError):
    """Participants of a collective did not come together."""

    exit_code = 7


@dataclass
class _Table:
    """One meeting of one group."""

    operands: dict[int, list[Array]] = field(default_factory=dict)
    """By place in the group."""
    results: list[list[Array]] | None = None


class Meeting:
    """The meeting place of all participants of one evaluation.

    Nobody waits in vain: when all who have not ended wait, none of them can go on, and the meeting
    ends for everybody at once. No time limit is involved.
    """

    def __init__(self, participants: int) -> None:
        self._condition = Condition()
        self._tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self._busy = participants
        """Participants that neither wait nor have ended."""
        self._failed = False
        self._stuck = ""
        """Who waits where, once nobody can go on."""

    def attend(
        self,
        name: str,
        group: tuple[int, ...],
        me: int,
        operands: list[Array],
        compute: Callable[[list[list[Array]]], list[list[Array]]],
    ) -> list[Array]:
        """Wait until every member of `group` has come to `name`; return this member's results.

        `me` is this member's place in the group; the last to come computes for all. Raises
        MeetingError where another participant failed or will never come.
        """
        key = (name, group)
        with self._condition:
            if self._failed:
                raise self._error(name)
            table = self._tables.setdefault(key, _Table())
            table.operands[me] = operands
            if len(table.operands) < len(group):
                return self._results(table, name)[me]
            del self._tables[key]  # the next round finds a new table
        results = compute([table.operands[i] for i in range(len(group))])
        table.operands.clear()
        with self._condition:
            table.results = results
            self._busy += len(group) - 1
            self._condition.notify_all()
        return results[me]

    def leave(self) -> None:
        """Say that a participant has ended well."""
        with self._condition:
            self._one_less_busy()

    def fail(self) -> None:
        """Wake everybody up: one participant will not come any more."""
        with self._condition:
            self._failed = True
            self._condition.notify_all()

    def _results(self, table: _Table, name: str) -> list[list[Array]]:
        self._one_less_busy()
        self._condition.wait_for(lambda: self._failed or table.results is not None)
        if table.results is None:
            raise self._error(name)
        return table.results

    def _one_less_busy(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self._tables:
            places = (
                f"{name!r} ({', '.join(str(group[i]) for i in sorted(table.operands))} of "
                f"{', '.join(map(str, group))})"
                for (name, group), table in self._tables.items()
            )
            self._stuck = "; ".join(sorted(places))
            self._failed = True
            self._condition.notify_all()

    def _error(self, name: str) -> MeetingError:
        if not self._stuck:
            return MeetingError("E2010", f"collective {name!r}: another participant failed")
        return MeetingError(
            "E2011",
            f"not all participants of a collective come to it; there wait: {self._stuck}",
            hint="participants that take different branches meet different collectives",
        )


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
