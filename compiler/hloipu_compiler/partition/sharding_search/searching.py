"""Searches for the best way to divide a module over IPUs: beams of tactics, then class by class.

A tactic divides one dimension of one class of parameters by one axis; propagation does the rest, as
one decision about a weight decides about its layer. Or it divides all large parameters at once, as
FSDP does. The first mesh has two axes as alike as can be. What is good there is tried on meshes of
all other shapes, together with what is good on one axis, and the best are improved class by class
until nothing is better. How much is tried goes by how many ops a candidate costs.
Sources: PartIR (Alabed et al., 2024), for tactics and propagation; Alpa (Zheng et al., 2022), for
meshes of two axes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations, product
from math import prod
from typing import NamedTuple, TypeVar

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.sharding_search.candidate import Candidate, front_of
from hloipu_compiler.partition.sharding_search.space import Choice, Space, System
from hloipu_compiler.partition.spmd.annotating import free_axis_names
from hloipu_compiler.partition.spmd.parameter_rules import MeshSizes
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.watching import current_search, telling

T = TypeVar("T")

_WIDTH = 4
"""Choices that each round of tactics goes on with. Assumed."""
_INPUTS = 2
"""Inputs whose first dimension is tried together with all large parameters. Assumed."""
_FURTHER = 16
"""Tactics of the first round that later ones add: the best alone. Assumed."""
_CARRIED = 6
"""Choices that are tried on every shape of mesh. Assumed."""
_GOOD = 8
"""Choices among which whoever compiles them may find the best. Assumed."""
_IMPROVED = 3
"""Choices that are improved class by class. Assumed."""
_STARTS = 8
"""Choices for less and less memory that are improved likewise. Assumed."""
_MOST_PAIRS = 200
"""Ways to change two classes together that are tried of each start. Assumed."""
MOST_OPS = 300_000
"""Ops that are written for a device and priced, all candidates together: half a minute."""
_LEAST, _MOST = 40, 500
"""Candidates of a search, whatever they cost."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    front: tuple[Candidate, ...]
    """Those that no other beats in cycles and bytes, the fastest first."""
    best: Candidate
    good: tuple[Candidate, ...]
    """Few that divide arrays in different ways, the best first."""
    looked_at: int
    undivided_cycles: int
    """Of one IPU with whole arrays."""
    choices: tuple[Choice, ...]
    """Where a search for another number of IPUs may start."""


class _Tactic(NamedTuple):
    classes: tuple[int, ...]
    dimensions: tuple[int, ...]
    """Of each class, which the axis divides."""


def found_shardings(
    module: Module,
    system: System,
    starts: Sequence[Choice] = (),
    *,
    most_ops: int = MOST_OPS,
    least: int = _LEAST,
    settles: bool = True,
) -> Found:
    """Return the best ways to divide a verified module's arrays over a system's IPUs.

    `starts`: choices to begin with, in place of beams of tactics. `most_ops`: written for a device
    and priced, all candidates together, but for `least` of them. `settles`: whether the best is
    priced as a whole, where few of equal layers were. Where the current search ends early, the best
    until then, of one at least. Raises UnsupportedError E0479 for a module that
    cannot be divided, UsageError E0486 where so many IPUs divide nothing evenly.
    """
    space = Space(module, system)
    most = min(max(most_ops // max(space.op_count, 1), least), _MOST)
    return _Searching(space, most).found(starts, settles=settles)


def mesh_shapes(devices: int, names: tuple[str, str]) -> list[MeshSizes]:
    """Return meshes of two axes, the most alike first, and of one; axes have these names."""
    name, minor = names
    pairs = [(a, devices // a) for a in range(2, devices) if devices % a == 0]
    pairs.sort(key=lambda pair: (max(pair), pair))
    return [*(((name, a), (minor, b)) for a, b in pairs), ((name, devices),)]


class _Searching:
    def __init__(self, space: Space, most: int) -> None:
        self.space = space
        self.left = self.most = most
        self.search = current_search()
        self.divides = False
        """Whether a trial divided an array."""
        self.tried: dict[tuple[MeshSizes, Choice], Candidate] = {}
        pairs = enumerate(zip(space.classes, space.bytes_of, strict=True))
        self.large = [
            n for n, (c, size) in pairs if size >= space.large_bytes and c[0] < space.results
        ]

    def found(self, starts: Sequence[Choice], *, settles: bool) -> Found:
        """Search, and say the shardings of the best ones in full."""
        shapes = mesh_shapes(self.space.system.ipus, free_axis_names(self.space.module))
        nothing: Choice = (None,) * len(self.space.classes)
        self._try(shapes[0], nothing, always=True)
        with self.search.improving():
            if not starts:
                self._begin(shapes)
            for mesh in shapes[0 if starts else 1 :]:
                for choice in starts or [choice for _, choice in self._best_keys(_CARRIED)]:
                    self._try(mesh, choice)
            for mesh, choice in self._best_keys(_IMPROVED):
                self._improve(mesh, choice)
            # What propagation has decided is decided anew, and what needs less memory is a start.
            for mesh, choice in (*self._best_keys(_IMPROVED), *self._front_keys(_STARTS)):
                self._improve(mesh, self._in_full(mesh, choice))
            for mesh, choice in self._front_keys(_STARTS):
                if self._pair_count(mesh) <= _MOST_PAIRS:
                    self._improve(mesh, self._in_full(mesh, choice), together=2)
        if not any(x.is_divided for x in self.tried.values()):
            raise UsageError(
                "E0486",
                f"{shapes[-1][0][1]} IPUs divide no parameter or large result evenly",
                hint="ask for a number that divides a dimension",
            )
        front, best = self._settled(settles=settles)
        good = (*self._best_keys(_CARRIED), *self._front_keys(_STARTS))
        choices = tuple(dict.fromkeys(choice for _, choice in good))
        whole = self.space.prices.spent(self.space.module).cycles
        pairs = sorted(self.tried.items(), key=lambda pair: pair[1].rank)
        alike = {(x.mesh, x.specs): (key, x) for key, x in reversed(pairs) if x.is_divided}
        few = sorted(alike.values(), key=lambda pair: pair[1].rank)[:_GOOD]
        rows = [self.space.settled(*key, x, whole=False) for key, x in few]
        return Found(front, best, (best, *rows), len(self.tried), whole, choices)

    def _settled(self, *, settles: bool) -> tuple[tuple[Candidate, ...], Candidate]:
        """Return those that no other beats, with the shardings that flags say, and the best.

        Of a module that is folded those are priced as a whole that look best, one by one, until the
        best is; without `settles` none.
        """
        keys = {id(candidate): key for key, candidate in self.tried.items()}
        divided = min((x for x in self.tried.values() if x.is_divided), key=lambda x: x.rank)
        told = [*self._told(front_of(list(self.tried.values()))), divided]
        left = set(range(len(told))) if self.space.folded is not None else set()
        rows = [
            self.space.settled(*keys[id(x)], x, whole=n not in left) for n, x in enumerate(told)
        ]
        while True:
            best = min((n for n, x in enumerate(rows) if x.is_divided), key=lambda n: rows[n].rank)
            if best not in left or not settles:
                return tuple(front_of(rows)), rows[best]
            left.remove(best)
            rows[best] = self.space.settled(*keys[id(told[best])], told[best], whole=True)

    def _begin(self, shapes: Sequence[MeshSizes]) -> None:
        """Look at meshes of one axis and of two; of a folded module first at what is usual."""
        ends = list(dict.fromkeys((shapes[0], shapes[-1])))
        shares = [0.4, 1 / 3]
        if self.space.folded is not None:
            ends.reverse()
            shares = [1 / 4, 1 / 2]
            for mesh in ends:
                self._together(mesh)
        for mesh, share in zip(ends, shares, strict=False):
            self._beam(mesh, int(self.left * share))

    def _told(self, front: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return those to be shown.

        All, but of a module that is folded the fastest of those that have room on one IPU, on
        two, on four and so on, and the leanest.
        """
        if self.space.folded is None:
            return front
        rooms = [2**n * front[0].budget_bytes for n in range(self.space.system.ipus.bit_length())]
        each = [next((x for x in front if x.needed_bytes <= room), front[-1]) for room in rooms]
        return [x for x in front if any(x is other for other in each)]

    def _try(self, mesh: MeshSizes, choice: Choice, *, always: bool = False) -> Candidate | None:
        """Return what a choice is worth; None where it does not fit the mesh, or time is up.

        However little time there is, the first trial that divides an array is made to its end.
        """
        key = (mesh, choice)
        if key in self.tried:
            return self.tried[key]
        if not always and (self.left <= 0 or not self._fits(*key)):
            return None
        telling("shardings", self.most - self.left, self.most)
        priced = partial(self.space.candidate, mesh, choice)
        candidate = self.search.tried(priced) if self.divides and not always else priced()
        if candidate is not None:
            self.left -= 1
            self.divides |= candidate.is_divided
            self.tried[key] = candidate
        return candidate

    def _fits(self, mesh: MeshSizes, choice: Choice) -> bool:
        """Whether a mesh has the axes of a choice, and they divide every dimension evenly."""
        sizes = dict(mesh)
        for spec, shape in zip(choice, self.space.shapes, strict=True):
            for axes, size in zip(spec or (), shape.dimensions, strict=False):
                if any(a not in sizes for a in axes) or size % prod(sizes[a] for a in axes):
                    return False
        return True

    # ---- tactics ----------------------------------------------------------------------------

    def _together(self, mesh: MeshSizes) -> None:
        """Try inputs by their first dimension and all large parameters, alone and beside those.

        Data parallelism, parameters in parts, and both together, on one axis or on two.
        """
        axes = [name for name, _ in reversed(mesh)]
        nothing: Choice = (None,) * len(self.space.classes)
        for axis in axes:
            batches = [_with(nothing, tactic, axis, self.space) for tactic in self._of_inputs()]
            for choice in (*batches, nothing):
                for tactic, other in product(self._of_large(), axes if choice else ()):
                    assert choice is not None
                    longer = _with(choice, tactic, other, self.space)
                    self._try(mesh, choice)
                    if longer is not None and (choice != nothing or axis == other):
                        self._try(mesh, longer)

    def _beam(self, mesh: MeshSizes, most: int) -> None:
        """Add tactics to the best choices, round by round, as long as that makes them better."""
        end = self.left - most
        nothing: Choice = (None,) * len(self.space.classes)
        axes = [name for name, _ in reversed(mesh)]
        moves = list(product(self._tactics(), axes))
        ranks: dict[tuple[_Tactic, str], tuple[bool, float]] = {}
        self._try(mesh, nothing)
        beam = []
        if self.space.folded is not None:
            beam += [(tried, c) for (m, c), tried in self.tried.items() if m == mesh]
        for tactic, axis in moves:
            if self.left <= end + most // 3 and ranks:
                break
            choice = _with(nothing, tactic, axis, self.space)
            tried = self._try(mesh, choice) if choice else None
            if tried is not None and choice is not None:
                ranks[tactic, axis] = tried.score
                beam.append((tried, choice))
        chosen = sorted(ranks, key=lambda move: ranks[move])[:_FURTHER]
        moves = [(tactic, axis) for tactic in dict.fromkeys(t for t, _ in chosen) for axis in axes]
        beam = _narrow(beam)
        while beam and self.left > end:
            more = []
            for _, choice in beam:
                for tactic, axis in moves:
                    longer = _with(choice, tactic, axis, self.space)
                    tried = self._try(mesh, longer) if longer and self.left > end else None
                    if tried is not None and longer is not None:
                        more.append((tried, longer))
            wider = _narrow([*beam, *more])
            if [choice for _, choice in wider] == [choice for _, choice in beam]:
                return
            beam = wider

    def _of_large(self) -> Iterator[_Tactic]:
        """Yield tactics of all large parameters at once, by a dimension of each."""
        shapes = self.space.shapes
        large = [n for family in self.space.families if family[0] in self.large for n in family]
        for of in (_longest, _first, _last) if large else ():
            yield _Tactic(tuple(large), tuple(of(shapes[n].dimensions) for n in large))

    def _of_inputs(self) -> Iterator[_Tactic]:
        """Yield tactics of what is no state and small: by the first dimension, often the batch."""
        small = [family for family in self._families if family[0] not in self.large]
        for family in small[:_INPUTS]:
            d = _first(self.space.shapes[family[0]].dimensions)
            yield _Tactic(family, (d,) * len(family))

    @cached_property
    def _families(self) -> list[tuple[int, ...]]:
        """Those of a folded module's training step; else the largest and the smallest in turn."""
        families = self.space.families
        if self.space.folded is not None and self.space.system.state:
            return families
        # What is small may divide the batch.
        halves = zip(families, reversed(families), strict=True)
        return list(dict.fromkeys(family for pair in halves for family in pair))

    def _tactics(self) -> Iterator[_Tactic]:
        """Yield tactics: large parameters all at once, then each family."""
        yield from self._of_large()
        for family in self._families:
            for d, size in enumerate(self.space.shapes[family[0]].dimensions):
                if size > 1:
                    yield _Tactic(family, (d,) * len(family))

    # ---- one class at a time ----------------------------------------------------------------

    def _improve(self, mesh: MeshSizes, choice: Choice, together: int = 1) -> None:
        """Change one class at a time, or two together, as long as that is better."""
        best = self._try(mesh, choice)
        order = sorted(range(len(choice)), key=lambda n: -self.space.bytes_of[n])
        is_better = True
        while is_better and best is not None:
            is_better = False
            for numbers in combinations(order, together):
                for specs in product(*((None, *self.space.specs(n, mesh)) for n in numbers)):
                    changed = dict(zip(numbers, specs, strict=True))
                    other = tuple(changed.get(n, spec) for n, spec in enumerate(choice))
                    tried = self._try(mesh, other)
                    if tried is not None and tried.score < best.score:
                        best, choice, is_better = tried, other, True
                if self.left <= 0:
                    return

    def _pair_count(self, mesh: MeshSizes) -> int:
        """Return in how many ways two classes can be changed together."""
        counts = [
            1 + sum(1 for _ in self.space.specs(n, mesh)) for n in range(len(self.space.classes))
        ]
        return sum(a * b for a, b in combinations(counts, 2))

    def _in_full(self, mesh: MeshSizes, choice: Choice) -> Choice:
        """Return a choice that says of every class what comes of it."""
        specs = self.tried[mesh, choice].specs
        large = self.space.large_bytes if self.space.folded is not None else 0
        return tuple(
            specs[numbers[0]] if said is not None or size >= large else None
            for numbers, size, said in zip(
                self.space.classes, self.space.bytes_of, choice, strict=True
            )
        )

    def _best_keys(self, count: int) -> list[tuple[MeshSizes, Choice]]:
        order = sorted(self.tried, key=lambda key: self.tried[key].score)
        return _distinct(order, lambda key: self.tried[key], count)

    def _front_keys(self, count: int) -> list[tuple[MeshSizes, Choice]]:
        """Return choices that no other beats, evenly from the fastest to the leanest."""
        keys = {id(candidate): key for key, candidate in self.tried.items()}
        front = [keys[id(x)] for x in front_of([x for x in self.tried.values() if x.is_divided])]
        return front[:: max(1, len(front) // count)][:count]


def _with(choice: Choice, tactic: _Tactic, axis: str, space: Space) -> Choice | None:
    """Return a choice with a tactic on an axis; None where that changes nothing."""
    new = list(choice)
    for number, d in zip(*tactic, strict=True):
        spec = new[number] or ((),) * len(space.shapes[number].dimensions)
        if not any(axis in axes for axes in spec):
            new[number] = (*spec[:d], (*spec[d], axis), *spec[d + 1 :])
    return tuple(new) if tuple(new) != choice else None


def _narrow(beam: Iterable[tuple[Candidate, Choice]]) -> list[tuple[Candidate, Choice]]:
    """Return the best few of different worth."""
    order = sorted(beam, key=lambda each: each[0].score)
    return _distinct(order, lambda each: each[0], _WIDTH)


def _distinct(order: Sequence[T], worth: Callable[[T], Candidate], count: int) -> list[T]:
    """Return the first few of different cycles or bytes."""
    first_by_worth: dict[tuple[int, int], T] = {}
    for each in order:
        candidate = worth(each)
        first_by_worth.setdefault((candidate.spent.cycles, candidate.needed_bytes), each)
        if len(first_by_worth) == count:
            break
    return list(first_by_worth.values())


def _longest(sizes: Sequence[int]) -> int:
    return max(range(len(sizes)), key=lambda d: sizes[d])


def _first(sizes: Sequence[int]) -> int:
    return next((d for d, size in enumerate(sizes) if size > 1), 0)


def _last(sizes: Sequence[int]) -> int:
    return max((d for d, size in enumerate(sizes) if size > 1), default=0)
