"""Random keys of replicas: which draw alike, and where the replica number is folded in."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.pipelining import Pipelining
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.stacks import PARAMETER, Numbering, Stack

if TYPE_CHECKING:
    from hloipu_compiler.analysis.random_keys import KeyWalk

AUTO, FOLDED, SAME = "auto", "folded", "same"
_MOST_NAMES = 4


class ReplicaKeys(NamedTuple):
    """Decisions about keys; numbers are those of parameters, arrays counted."""

    folded: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    """For people."""
    draws: bool = False
    """Whether anything is drawn from a key."""


NO_KEYS = ReplicaKeys()


def replica_keys(
    module: Module,
    wrapping: Wrapping | None,
    pipelining: Pipelining | None,
    replicas: int,
    names: Mapping[int, str],
    asked: str,
    stacks: Sequence[Stack] = (),
) -> ReplicaKeys:
    """Return the keys of a module on replicas, and what draws the same numbers again.

    `module`: as it is lowered, `wrapping` and `pipelining` beside it, with `stacks` in pieces.
    `pipelining`: of a step whose replicas combine nothing but its gradients; None where anything
    else may be combined, and it is not known what has to stay alike. `names`: of the parameters by
    users' numbers. `asked`: `auto`, `folded` or `same`. Unasked, a key is folded only where
    its draws reach the update by gradients alone, so that weights stay alike.
    """
    from hloipu_compiler.analysis.random_keys import KeyWalk, draws_random_bits, key_numbers

    if not draws_random_bits(module):
        return NO_KEYS
    pieces = [set(stack.numbers) for stack in stacks if stack.kind == PARAMETER]
    walk = KeyWalk(module, [sum(1 << n for n in numbers) for numbers in pieces])
    state = {pair.parameter: pair.result for pair in wrapping.state} if wrapping else {}
    on_device = {*state, *(wrapping.constants if wrapping else ())}
    keys = key_numbers(walk, state) & on_device
    for numbers in pieces:  # folded as users see it, whole or not at all
        if not keys.issuperset(numbers):
            keys -= numbers
    in_update = _in_update(walk, pipelining) if pipelining else 0
    wanted = keys if asked == FOLDED else frozenset[int]()
    if asked == AUTO and pipelining is not None:
        wanted = frozenset(n for n in keys if not in_update >> n & 1)
    fed = {n for feed in (wrapping.feeds if wrapping else ()) for n in feed.places}
    users = Numbering(stacks, PARAMETER).users
    describer = _Describer(walk, names, users)
    lines: tuple[str, ...] = ()
    if replicas > 1:
        lines = describer.of_replicas(wanted, fed, {n for n in keys if in_update >> n & 1}, asked)
    if pipelining is not None and pipelining.micro_batches > 1:
        changing = {p for p, r in pipelining.per_micro_batch if walk.changes(p, r)}
        lines += describer.of_micro_batches({*changing, *fed}, pipelining.update)
    folded = sorted({users(n) for n in wanted}) if replicas > 1 else ()
    return ReplicaKeys(tuple(folded), lines, draws=True)


def _in_update(walk: "KeyWalk", pipelining: Pipelining) -> int:
    """Return what the update reads otherwise than by gradients that replicas combine."""
    if not pipelining.update or not pipelining.schedule.trains:
        return 0
    entry = walk.module.entry
    gradients = {
        (accumulation.call, accumulation.element) for accumulation in pipelining.accumulations
    }
    drawn = 0
    masks = walk.operands(pipelining.update)
    for position, mask in zip(entry[pipelining.update].operands, masks, strict=True):
        instruction = entry.instructions[position]
        if instruction.opcode == "get-tuple-element":
            maker = entry.instructions[instruction.operands[0]].name
            if (maker, instruction.attributes.integer("index")) in gradients:
                continue
        drawn |= mask.all
    return drawn


@dataclass(frozen=True)
class _Describer:
    """Says which replicas draw alike, and from what."""

    walk: "KeyWalk"
    names: Mapping[int, str]
    users: Callable[[int], int]
    """The user's number of a parameter."""

    def of_replicas(
        self, folded: Set[int], fed: Set[int], in_update: Set[int], asked: str
    ) -> tuple[str, ...]:
        """Return a line for keys that are folded, and one for draws that are alike.

        `in_update`: keys that the update reads.
        """
        names = []
        if folded:
            names.append(
                f"  random numbers: each replica's number is folded into {self._named(folded)}; "
                "the first replica's is as given"
            )
        elif asked == FOLDED:
            names.append(
                "  random numbers: no parameter is certain to be a key, none has replicas' "
                "numbers folded in"
            )
        differing = self.walk.replica_bit
        for number in {*folded, *fed}:
            differing |= 1 << number
        numbers = self._behind(list(self.walk.draws.values()), differing)
        if numbers is None:
            return tuple(names)
        line = f"  random numbers: the same on every replica from {self._named(numbers)}"
        if asked == SAME:
            line += ", as --replica-keys same has it"
        elif numbers & in_update:
            line += ", which the update reads: weights stay alike"
        else:
            line += "; feed a key, or give the session one for each (a first axis of replicas)"
        return (*names, line)

    def of_micro_batches(self, changing: Set[int], update: str) -> tuple[str, ...]:
        """Return a line for draws that every micro-batch makes alike.

        `changing`: parameters that differ from micro-batch to micro-batch; `update`: the call whose
        draws are those of no micro-batch.
        """
        draws = [mask for site, mask in self.walk.draws.items() if site[0] != update]
        numbers = self._behind(draws, sum(1 << n for n in changing))
        if numbers is None:
            return ()
        return (
            f"  random numbers: the same in every micro-batch from {self._named(numbers)}; feed a "
            "key, or let the step split it or fold in a counter that goes on (--role N=carry)",
        )

    def _behind(self, draws: Sequence[int], differing: int) -> set[int] | None:
        """Return what draws are made of that nothing differing goes into; None: there are none."""
        alike = [mask for mask in draws if not mask & differing]
        if not alike:
            return None
        behind = 0
        for mask in alike:
            behind |= mask
        return {n for n in range(behind.bit_length()) if behind >> n & 1}

    def _named(self, numbers: Set[int]) -> str:
        known = sorted({self.users(n) for n in numbers})
        if not known:
            return "constants"
        shown = [f"parameter {n} {self.names.get(n, '')}".rstrip() for n in known[:_MOST_NAMES]]
        more = len(known) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
