"""One way to divide the parameters of a module over a mesh: its price, and the rules that ask."""

import re
from collections.abc import Sequence

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.sharding_search.pricing import Spent
from hloipu_compiler.partition.spmd.parameter_rules import (
    MeshSizes,
    Rule,
    Sharding,
    Spec,
    matching,
    names_of_arrays,
)
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_runtime.frozen import dataclass

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Shardings of all parameters that are arrays, and what one device takes with them."""

    mesh: MeshSizes
    specs: tuple[Spec | None, ...]
    """Of the arrays of the entry's parameters and of its results; None: propagation decides."""
    spent: Spent
    needed_bytes: int
    """Of one IPU at its fullest moment, by estimate."""
    budget_bytes: int
    seconds: float
    """Of one run, without the host."""

    @property
    def fits(self) -> bool:
        """Whether an IPU has room, by estimate."""
        return self.needed_bytes <= self.budget_bytes

    @property
    def is_divided(self) -> bool:
        """Whether any array is."""
        return any(axes for spec in self.specs for axes in spec or ())

    @property
    def link_share(self) -> float:
        """Share of the cycles in which IPUs meet over links."""
        return self.spent.meeting / max(self.spent.cycles, 1)

    @property
    def score(self) -> tuple[bool, float]:
        """A rank to search by: as `rank`, but of what does not fit what is fast for its memory."""
        lacking = self.needed_bytes / max(self.budget_bytes, 1)
        return not self.fits, self.spent.cycles * max(1.0, lacking) ** 2

    @property
    def rank(self) -> tuple[bool, float]:
        """A rank among those that may be taken: the fastest that fits, or the nearest to that."""
        return (False, self.spent.cycles) if self.fits else (True, self.needed_bytes)

    def sharding(self, module: Module) -> Sharding:
        """Return the mesh, and few rules by name that ask for these shardings."""
        return Sharding(self.mesh, rules_of(module, self.specs))


def front_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those that no other beats in cycles and bytes, the fastest first."""
    order = sorted(candidates, key=lambda x: (x.spent.cycles, x.needed_bytes, len(x.mesh)))
    front: list[Candidate] = []
    for each in order:
        if not front or each.needed_bytes < front[-1].needed_bytes:
            front.append(each)
    return front


def rules_of(module: Module, specs: Sequence[Spec | None]) -> tuple[Rule, ...]:
    """Return rules that give every array its spec; parameters that are whole have the last one."""
    names = names_of_arrays(module)
    parameters = len(parameter_arrays(module))
    is_full = None not in specs[:parameters]
    groups: dict[Spec, set[int]] = {}
    for number, spec in enumerate(specs):
        if spec is not None:
            groups.setdefault(_short(spec), set()).add(number)
    whole = {number for number in groups.get((), ()) if number < parameters and is_full}
    groups[()] = groups.get((), set()) - whole
    rules: list[Rule] = []
    done: set[int] = set()
    for spec, group in sorted(groups.items(), key=lambda each: min(each[1], default=0)):
        for number in sorted(group):
            if number not in done:
                pattern, matched = _pattern(number, names, group - done, done)
                rules.append((pattern, spec))
                done |= matched
    return (*rules, *([("*", ())] if whole else []))


def _short(spec: Spec) -> Spec:
    """Return a spec without dimensions at its end that are whole."""
    end = len(spec)
    while end and not spec[end - 1]:
        end -= 1
    return spec[:end]


def _pattern(
    number: int, names: Sequence[Sequence[str]], wanted: set[int], done: set[int]
) -> tuple[str, set[int]]:
    """Return the shortest pattern of a name that matches nothing but what is wanted, or done.

    With any digits where that matches more.
    """
    parts = names[number][min(1, len(names[number]) - 1)].split("/")
    for count in range(1, len(parts) + 1):
        end = "/".join(parts[-count:])
        start = "" if count == len(parts) else "*/"
        for text in dict.fromkeys((end, _DIGITS.sub("*", end))):
            matched = set(matching(start + text, names))
            if "=" not in text and number in matched and matched <= wanted | done:
                wide = start + _DIGITS.sub("*", end)
                more = set(matching(wide, names))
                is_wider = matched - done < more - done and more <= wanted | done
                return (wide, more) if is_wider else (start + text, matched)
    return str(number), {number}
