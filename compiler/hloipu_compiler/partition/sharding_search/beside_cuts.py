"""Candidate shardings for `--plan auto`, to be combined with stages and replicas.

Arrays are divided over as many IPUs as divide those that there are; the rest is for stages and
replicas. All IPUs together are searched as if nothing else was, the others begin with what was good
there: how arrays are best divided hardly goes by how many blocks they have. Of each number
those stay that are fastest with their arrays spread over one stage, two, four and so on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.sharding_search.candidate import Candidate
from hloipu_compiler.partition.sharding_search.searching import MOST_OPS, Found, found_shardings
from hloipu_compiler.partition.sharding_search.space import LONG, Choice, System
from hloipu_compiler.partition.spmd.parameter_rules import Sharding
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.watching import current_search, doing

_MOST_COUNTS = 4
"""Numbers of IPUs to divide over that are looked at. Assumed."""
_WHERE_WHOLE_FITS = 12
"""Where something fits without shardings, one part of so many of the effort is spent. Assumed."""
_WHERE_LONG = 3
"""Else one in so many of a long module: what else is there to be done takes as long. Assumed."""
_OTHER_COUNTS = 16
"""Each number of IPUs but the first takes one part of so many of that. Assumed."""
_LEAST = 16
"""Candidates of each number of IPUs, whatever they cost."""


@dataclass(frozen=True, slots=True)
class ShardingCandidate:
    """A sharding, and how well IPUs are used with it if none waits for another stage."""

    sharding: Sharding
    efficiency: float
    """Cycles of one IPU with whole arrays over those of all that share them, by estimate."""
    stages: int
    """The fewest that have room for its arrays, by estimate, if they share them evenly."""
    alone: Candidate | None
    """What it costs apart from cuts, where its mesh takes all IPUs and the module is long."""


def shardings_beside(
    module: Module, system: System, most_stages: int, *, fits: bool
) -> list[ShardingCandidate]:
    """Return shardings of a verified module to be looked at beside stages.

    `system`: all IPUs that there are. `fits`: whether something fits without shardings, so that
    less effort is spent, and the fastest come first; else the surest to fit do. Those without room
    are left out where others have it. None where nothing can be divided evenly. Raises
    UnsupportedError E0479 for a module that cannot be divided.
    """
    is_long = module.instruction_count > LONG
    most_ops = MOST_OPS // (_WHERE_WHOLE_FITS if fits else _WHERE_LONG if is_long else 1)
    beside: list[tuple[bool, ShardingCandidate]] = []
    starts: tuple[Choice, ...] = ()
    for count in _counts(system.ipus):
        if current_search().is_over():
            break
        takes_all = is_long and count == system.ipus
        own = replace(system, ipus=count, counts_code=takes_all)
        try:
            with doing(f"dividing arrays over {count} of {system.ipus} IPUs"):
                ops = most_ops // _OTHER_COUNTS if starts else most_ops
                searched = found_shardings(
                    module, own, starts, most_ops=ops, least=_LEAST, settles=False
                )
        except UsageError:  # so many IPUs divide nothing evenly
            continue
        starts = starts or searched.choices
        stages = min(system.ipus // count, most_stages)
        for each in _fastest(searched, stages):
            efficiency = searched.undivided_cycles / max(count * each.spent.cycles, 1)
            least = 1 << (-(-each.needed_bytes // each.budget_bytes) - 1).bit_length()
            sharding, alone = each.sharding(module), each if takes_all else None
            some = ShardingCandidate(sharding, efficiency, least, alone)
            beside.append((least <= stages, some))
    roomy = [x for has_room, x in beside if has_room] or [x for _, x in beside]
    return sorted(roomy, key=lambda x: (0 if fits else x.stages, -x.efficiency))


def _counts(ipus: int) -> list[int]:
    """Return the numbers of IPUs to divide over, all of them first."""
    divisors = [n for n in range(ipus, 1, -1) if ipus % n == 0]
    return divisors[:: max(1, -(-len(divisors) // _MOST_COUNTS))]


def _fastest(searched: Found, most_stages: int) -> Iterator[Candidate]:
    """Yield the fastest that has room on one stage, on two and so on, or else the leanest."""
    divided: Sequence[Candidate] = [
        candidate for candidate in searched.front if candidate.is_divided
    ] or [searched.best]
    seen: set[int] = set()
    stages = 1
    while stages <= most_stages:
        room = [
            candidate
            for candidate in divided
            if candidate.needed_bytes <= stages * candidate.budget_bytes
        ]
        each = min(room, key=lambda x: x.spent.cycles) if room else divided[-1]
        if id(each) not in seen:
            seen.add(id(each))
            yield each
        stages *= 2
