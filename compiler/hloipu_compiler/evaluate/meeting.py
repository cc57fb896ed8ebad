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

WAIT_SECONDS = 300.0
"""Longest wait for the other members; they compute the same program, so a longer one is a hang."""


class MeetingError(HloipuError):
    """Participants of a collective did not come together."""

    exit_code = 7


@dataclass
class _Table:
    """One meeting of one group."""

    operands: dict[int, list[Array]] = field(default_factory=dict)
    results: list[list[Array]] | None = None
    taken: int = 0


class Meeting:
    """The meeting place of all participants of one evaluation."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._tables: dict[tuple[str, tuple[int, ...]], _Table] = {}
        self._failed: BaseException | None = None

    def attend(
        self,
        name: str,
        group: tuple[int, ...],
        me: int,
        operands: list[Array],
        compute: Callable[[list[list[Array]]], list[list[Array]]],
    ) -> list[Array]:
        """Wait until every member of `group` has come to `name`; return this member's results.

        Raises MeetingError where another participant failed or did not come in time.
        """
        key = (name, group)
        with self._condition:
            # A member may be back for the next round before all have left this one.
            self._wait(lambda: me not in self._table(key).operands, name)
            table = self._table(key)
            table.operands[me] = operands
            if len(table.operands) == len(group):
                table.results = compute([table.operands[i] for i in range(len(group))])
                self._condition.notify_all()
            self._wait(lambda: table.results is not None, name)
            results = table.results or []
            table.taken += 1
            if table.taken == len(group):
                del self._tables[key]
                self._condition.notify_all()
            return results[me]

    def _table(self, key: tuple[str, tuple[int, ...]]) -> _Table:
        return self._tables.setdefault(key, _Table())

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        done = self._condition.wait_for(
            lambda: self._failed is not None or ready(), timeout=WAIT_SECONDS
        )
        if self._failed is not None:
            raise MeetingError("E2010", f"collective {name!r}: another participant failed")
        if not done:
            raise MeetingError(
                "E2011",
                f"collective {name!r}: not all participants came within {WAIT_SECONDS:.0f} s",
                hint="participants that take different branches meet different collectives",
            )

    def fail(self, error: BaseException) -> None:
        """Wake everybody up: one participant will not come any more."""
        with self._condition:
            if self._failed is None:
                self._failed = error
            self._condition.notify_all()


def group_of(site: Site) -> list[int]:
    """Return the participants that this one meets at a collective, in group order."""
    effects = site.effects
    if "source_target_pairs" in site.attributes:
        by_partition = site.attributes.integer("channel_id") > 0
        return _line(site, by_partition)
    groups = site.attributes.replica_groups().groups
    channel = site.attributes.integer("channel_id") > 0
    if channel and site.attributes.flag("use_global_device_ids"):
        found = groups or (tuple(range(effects.replicas * effects.partitions)),)
        return _mine(site, found, effects.participant)
    takes_flag = site.instruction.opcode.startswith(("all-reduce", "all-gather", "reduce-scatter"))
    if channel and not takes_flag:  # groups of partitions, within one replica
        found = groups or (tuple(range(effects.partitions)),)
        members = _mine(site, found, effects.partition)
        return [effects.replica * effects.partitions + p for p in members]
    found = groups or (tuple(range(effects.replicas)),)
    members = _mine(site, found, effects.replica)
    partitions = range(effects.partitions) if channel else (effects.partition,)
    return [r * effects.partitions + p for r in members for p in partitions]


def _mine(site: Site, groups: tuple[tuple[int, ...], ...], me: int) -> list[int]:
    effects = site.effects
    for group in groups:
        if me in group:
            highest = max(max(g) for g in groups)
            available = effects.replicas * effects.partitions
            if highest >= available:
                raise UsageError(
                    "E3104",
                    f"collective {site.instruction.name!r} needs {highest + 1} participants, "
                    f"{effects.replicas} replicas x {effects.partitions} partitions are there",
                    hint=f"evaluate with replicas={highest + 1}, or as many partitions",
                )
            return list(group)
    return [effects.participant]


def _line(site: Site, by_partition: bool) -> list[int]:
    """Return all participants that differ from this one in the partition, or in the replica."""
    effects = site.effects
    if by_partition:
        return [effects.replica * effects.partitions + p for p in range(effects.partitions)]
    return [r * effects.partitions + effects.partition for r in range(effects.replicas)]


def permutation_of(site: Site) -> list[tuple[int, int]]:
    """Return source_target_pairs as places within `group_of`.

    Raises UsageError where a pair names a participant that is not there.
    """
    pairs = site.attributes.pairs("source_target_pairs")
    members = len(group_of(site))
    highest = max((max(pair) for pair in pairs), default=0)
    if highest >= members:
        raise UsageError(
            "E3104",
            f"collective {site.instruction.name!r} needs {highest + 1} participants, "
            f"{members} are there",
            hint=f"evaluate with replicas={highest + 1}, or as many partitions",
        )
    return list(pairs)
