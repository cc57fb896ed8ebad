"""The ways to divide a module's arrays, and what each is worth: tried as it would be compiled.

A choice says of each class of parameters, and of large results, which axes divide which dimension,
or nothing: then propagation decides. What a choice is worth tells the program of one device that
comes of it.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from hloipu_compiler.hlo.attributes.mesh import Mesh
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, byte_count, leaves_of
from hloipu_compiler.partition.sharding_search.candidate import Candidate
from hloipu_compiler.partition.sharding_search.folding import folded
from hloipu_compiler.partition.sharding_search.pricing import BlockPrices, needed_bytes
from hloipu_compiler.partition.spmd.axes import AxisSharding, DeviceAxes, axis_digits, device_axes
from hloipu_compiler.partition.spmd.cuts import Cuts
from hloipu_compiler.partition.spmd.links import Links, StatePairs, links_of
from hloipu_compiler.partition.spmd.localizing import entry_splits, for_one_device
from hloipu_compiler.partition.spmd.parameter_rules import MeshSizes, Spec
from hloipu_compiler.partition.spmd.propagating import Propagated, propagated
from hloipu_compiler.partition.spmd.reading import Key, Stated
from hloipu_compiler.partition.spmd.reshard_steps import Paths
from hloipu_compiler.plan.entry_arrays import parameter_arrays
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import seconds
from hloipu_runtime.memory.plan import available_bytes

Choice = tuple[Spec | None, ...]
"""Of each class of arrays; None: propagation decides."""

_SAME = ELEMENTWISE | frozenset({"copy", "opt-barrier"})
_ROUNDS = 3
"""Ops away that are looked at to see whether parameters are alike: a product, what it multiplies,
and what that is made from."""
_LARGE = 100
"""An array is large whose bytes are one in so many of an IPU's, or of all parameters'. Assumed."""
_ROOM = 90
"""Percent of an IPU's memory that arrays and code may take: the rest is for copies and what does
not come out even. Assumed."""
LONG = 1_000
"""Instructions of a module that is folded, if it has equal layers. Assumed."""
_ARRAY_ROOM = 85
"""Percent that arrays alone may take, where code is not counted. Assumed."""


@dataclass(frozen=True)
class System:
    """What a search is for."""

    machine: Machine
    ipus: int
    state: StatePairs = ()
    """Parameters that stay on the device, and the results that are their next values."""
    tuning: Tuning = DEFAULT_TUNING
    assumed_trips: int = 1
    """Of loops that data decides."""
    counts_code: bool = True
    """Whether an IPU runs all of the module; stages have only their own part of its code."""

    @property
    def budget_bytes(self) -> int:
        """Bytes of an IPU that arrays and code may take."""
        tiles = self.machine.chip.tiles_per_ipu
        room = _ROOM if self.counts_code else _ARRAY_ROOM
        return tiles * available_bytes(self.machine) * room // 100


class Space:
    """All choices for one module; each is worth the same whenever it is asked for.

    A long module with equal layers is priced by one with few of them.
    """

    def __init__(self, module: Module, system: System) -> None:
        self.module, self.system = module, system
        self.places = _places(module)
        first = {key: n for n, (key, _) in reversed(list(enumerate(self.places)))}
        numbers = [first.get((module.entry.name, i), -1) for i in module.entry.parameters]
        short = folded(module, system.state) if module.instruction_count > LONG else None
        alike = _alike_parameters(module, short.alike if short else None)
        self.classes = [tuple(numbers[p] for p in c) for c in alike]
        self.results = len(parameter_arrays(module))
        """The number of the first result among the arrays."""
        state = {result for _, result in system.state}
        given = sum(byte_count(module.entry.instructions[i].shape) for i in module.entry.parameters)
        self.large_bytes = min(given, system.budget_bytes) // _LARGE
        """Of an array that is large."""
        results = _large_results(module, state, self.large_bytes)
        self.classes += [tuple(self.results + n for n in c) for c in results]
        self.prices = BlockPrices(system.machine, system.tuning, system.ipus, system.assumed_trips)
        self.folded = short
        self.whole = _Pricing(short.whole if short else module, system.state, self)
        self.short = _Pricing(short.module, short.state, self, self.whole) if short else self.whole
        self.known: dict[tuple[MeshSizes, Choice], Candidate] = {}

    @property
    def op_count(self) -> int:
        """Ops that are written for a device and priced to try a choice."""
        return self.short.module.instruction_count

    @cached_property
    def shapes(self) -> list[ArrayShape]:
        """The shape of each class."""
        computation = self.module.entry
        shapes = []
        for numbers in self.classes:
            (_, position), leaf = self.places[numbers[0]]
            shapes.append(leaves_of(computation.instructions[position].shape)[leaf])
        return shapes

    @cached_property
    def families(self) -> list[tuple[int, ...]]:
        """Classes of one shape that meet in elementwise ops, as a weight and its moments do.

        One decision about the first, the largest, is one about all. Inputs come first, then the
        largest, then results. Of a module that is not folded each class is one, the largest first.
        """
        if self.folded is None:
            order = sorted(range(len(self.classes)), key=lambda n: -self.bytes_of[n])
            return [(number,) for number in order]
        groups: dict[Hashable, list[int]] = {}
        met = _met(self.module.entry)
        for number, (one, *_) in enumerate(self.classes):
            is_result = one >= self.results
            at = ("result", number) if is_result else ("parameter", met[self.places[one][0][1]])
            groups.setdefault(at, []).append(number)
        kept = {parameter for parameter, _ in self.system.state}
        ordered = [sorted(x, key=lambda n: -self.bytes_of[n]) for x in groups.values()]
        ordered.sort(key=lambda x: -self.bytes_of[x[0]])

        def rank(family: Sequence[int]) -> int:
            one = self.classes[family[0]][0]
            return 2 if one >= self.results else int(one in kept or not kept)

        return [tuple(x) for x in sorted(ordered, key=rank)]

    @cached_property
    def bytes_of(self) -> list[int]:
        """Bytes of all arrays of each class."""
        pairs = zip(self.classes, self.shapes, strict=True)
        return [len(c) * shape.byte_count for c, shape in pairs]

    def specs(self, number: int, mesh: MeshSizes) -> Iterator[Spec]:
        """Yield all specs of a class: each axis divides one dimension or none, none unevenly."""
        shape, sizes = self.shapes[number], dict(mesh)
        rank = len(shape.dimensions)

        def further(axes: Sequence[str], spec: Spec) -> Iterator[Spec]:
            if not axes:
                yield spec
                return
            yield from further(axes[1:], spec)
            for d in range(rank):
                if axes[0] in spec[d]:
                    continue
                for longer in ((*spec[d], axes[0]), (axes[0], *spec[d])):
                    if shape.dimensions[d] % prod(sizes[a] for a in longer) == 0:
                        yield from further(axes[1:], (*spec[:d], longer, *spec[d + 1 :]))
                    if not spec[d]:
                        break

        yield from further([name for name, _ in mesh], ((),) * rank)

    def candidate(self, mesh: MeshSizes, choice: Choice) -> Candidate:
        """Return what a choice is worth, with the shardings of all parameters that come of it.

        Raises UnsupportedError E0479 for a module that cannot be divided.
        """
        key = (mesh, choice)
        if key not in self.known:
            self.known[key] = self._tried(mesh, choice)
        return self.known[key]

    def settled(
        self, mesh: MeshSizes, choice: Choice, tried: Candidate, *, whole: bool
    ) -> Candidate:
        """Return a choice with the shardings that its flags will say, priced with them if `whole`.

        Those of all parameters; of a module that is folded those of the choice alone, since what
        propagation decides differs from layer to layer.
        """
        if self.folded is None:
            said = {n: spec for n, spec in enumerate(tried.specs) if spec is not None}
            return self.whole.priced(mesh, said)
        said = self._said(choice)
        specs = tuple(said.get(n) for n in range(len(self.places)))
        return replace(self.whole.priced(mesh, said) if whole else tried, specs=specs)

    def _said(self, choice: Choice) -> dict[int, Spec]:
        pairs = zip(self.classes, choice, strict=True)
        return {n: spec for numbers, spec in pairs if spec is not None for n in numbers}

    def _tried(self, mesh: MeshSizes, choice: Choice) -> Candidate:
        said = self._said(choice)
        if self.folded is None:
            return self.whole.priced(mesh, said)
        numbers = self.folded.arrays
        some = {n: said[number] for n, number in enumerate(numbers) if number in said}
        candidate = self.short.priced(mesh, some)
        known = dict(zip(numbers, candidate.specs, strict=True))
        for alike, spec in zip(self.classes, choice, strict=True):
            mine = next((known[n] for n in alike if known.get(n) is not None), spec)
            known |= {n: mine for n in alike if known.get(n) is None}
        specs = tuple(known.get(n) for n in range(len(self.places)))
        return replace(candidate, specs=specs)


class _Pricing:
    """A module in the shardings that are tried, and what was found for all of them."""

    def __init__(
        self, module: Module, state: StatePairs, space: Space, like: "_Pricing | None" = None
    ) -> None:
        self.module, self.state, self.like = module, state, like
        self.system, self.prices = space.system, space.prices
        self.places = _places(module)
        self.results = len(parameter_arrays(module))
        self.links: dict[bool, Links] = {}
        """Of the module, without and with results that are divided."""
        self.shared: dict[tuple[int, ...], tuple[Paths, Cuts]] = {}
        """Of meshes with these parts: steps between shardings, and how ops are divided for them."""
        self.known: dict[Hashable, Candidate] = {}
        """By the shardings of all arrays: choices that differ may come to the same."""

    def priced(self, mesh: MeshSizes, said: dict[int, Spec]) -> Candidate:
        """Return what it is worth to divide arrays so."""
        entry = self.module.entry
        axes, parts = _axes_of(mesh)
        stated: dict[Key, list[AxisSharding | None]] = {}
        for number, spec in said.items():
            key, leaf = self.places[number]
            count = len(leaves_of(entry.instructions[key[1]].shape))
            stated.setdefault(key, [None] * count)[leaf] = _sharding(spec, parts)
        shardings = {key: tuple(each) for key, each in stated.items()}
        said_of_results = (entry.name, entry.root) in shardings
        whole = Stated(axes, True, shardings, {}, {})
        links = self.links.get(said_of_results)
        if links is None:
            links = links_of(self.module, whole, self.state)
            self.links[said_of_results] = links
        known = propagated(self.module, whole, self.state, links)
        of_results = tuple(said.get(n) for n in range(self.results, len(self.places)))
        seen = (mesh, of_results, *(x.dimensions for x in known.shardings))
        if seen not in self.known:
            self.known[seen] = self._priced(mesh, said, known)
        return self.known[seen]

    def _priced(self, mesh: MeshSizes, said: dict[int, Spec], known: Propagated) -> Candidate:
        system, (axes, parts) = self.system, _axes_of(mesh)
        results = entry_splits(self.module, known, self.state)[1]
        paths, cuts = self._shared(axes)
        local = for_one_device(self.module, known, results, paths, cuts)
        spent = self.prices.spent(local)
        specs = [
            said.get(number)
            if number >= self.results
            else tuple(_names(own, parts) for own in known.result(key)[leaf].dimensions)
            for number, (key, leaf) in enumerate(self.places)
        ]
        return Candidate(
            mesh,
            tuple(specs),
            spent,
            needed_bytes(local, system.machine.chip.tiles_per_ipu if system.counts_code else 0),
            system.budget_bytes,
            seconds(system.machine, spent.cycles),
        )

    def _shared(self, axes: DeviceAxes) -> tuple[Paths, Cuts]:
        """Return what is known for meshes with these parts, with what one like this knows."""
        if axes.sizes not in self.shared:
            paths, cuts = self.like._shared(axes) if self.like else (Paths(axes), None)
            self.shared[axes.sizes] = paths, Cuts(cuts)
        return self.shared[axes.sizes]


def _places(module: Module) -> list[tuple[Key, int]]:
    """Return where each array of the entry is: of parameters, without tokens, then of results."""
    entry = module.entry
    leaves = []
    for position in entry.parameters:
        for leaf, shape in enumerate(leaves_of(entry.instructions[position].shape)):
            if shape.element_type.name != "token":
                leaves.append(((entry.name, position), leaf))
    count = len(leaves_of(entry.instructions[entry.root].shape))
    return [*leaves, *(((entry.name, entry.root), leaf) for leaf in range(count))]


def _met(entry: Computation) -> list[int]:
    """Return of each op one that stands for all of its sizes that it meets in elementwise ops."""
    first = list(range(len(entry.instructions)))

    def of(i: int) -> int:
        while first[i] != i:
            first[i] = i = first[first[i]]
        return i

    for position, x in enumerate(entry.instructions):
        for i in x.operands if x.opcode in _SAME else ():
            other = entry.instructions[i]
            # A number that is spread out may be there once for many arrays.
            is_own = other.opcode in _SAME or other.parameter_number >= 0
            if is_own and _sizes(other) == _sizes(x):
                first[of(i)] = of(position)
    return [of(i) for i in range(len(first))]


def _sizes(x: Instruction) -> Hashable:
    """Return the dimensions of an array; nothing is like a tuple but itself."""
    return x.shape.dimensions if isinstance(x.shape, ArrayShape) else x


def _axes_of(mesh: MeshSizes) -> tuple[DeviceAxes, dict[str, tuple[int, ...]]]:
    """Return a mesh's parts, and those of each axis."""
    names, sizes = zip(*mesh, strict=True)
    digits = axis_digits(Mesh(names, sizes), ())
    axes = device_axes((d for group in digits for d in group), prod(sizes), ())
    parts = {name: axes.parts(own) for name, own in zip(names, digits, strict=True)}
    return replace(axes, names=tuple(parts.items())), parts


def _sharding(spec: Spec, parts: dict[str, tuple[int, ...]]) -> AxisSharding:
    dimensions = tuple(tuple(p for name in names for p in parts[name]) for names in spec)
    return AxisSharding(dimensions, (True,) * len(spec))


def _names(own: tuple[int, ...], parts: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the axes whose parts these are, as far as they are whole."""
    names: list[str] = []
    while own:
        name = next((n for n, each in parts.items() if each and own[: len(each)] == each), None)
        if name is None:
            break
        names.append(name)
        own = own[len(parts[name]) :]
    return tuple(names)


def _alike_parameters(
    module: Module, pairs: Sequence[tuple[int, int]] | None
) -> list[tuple[int, ...]]:
    """Return the numbers of parameters that are arrays with dimensions, those alike together.

    Alike are those whose surroundings are, as with equal layers: ops, shapes and places of operands
    up to some ops away. Of a module that is folded also those that equal blocks read at one place,
    `pairs`, and moments, whose own are the same for all weights, as their weights are.
    """
    entry = module.entry
    looks: list[Hashable] = [
        hash((x.opcode, str(x.shape), tuple(sorted(map(str, x.attributes)))))
        for x in entry.instructions
    ]
    users: list[list[tuple[int, int]]] = [[] for _ in entry.instructions]
    for position, x in enumerate(entry.instructions):
        for slot, i in enumerate(x.operands):
            # Where a result stands in a tuple says nothing of how it is made.
            says_nothing = pairs is not None and x.opcode == "tuple"
            users[i].append((position, 0 if says_nothing else slot))
    for _ in range(_ROUNDS):
        looks = [
            hash((
                looks[position],
                tuple([looks[i] for i in x.operands]),
                tuple(sorted([(slot, looks[user]) for user, slot in users[position]])),
            ))
            for position, x in enumerate(entry.instructions)
        ]  # fmt: skip
    same: dict[Hashable, Hashable] = {}

    def look_of(position: int) -> Hashable:
        look = looks[position]
        while look in same:
            look = same[look]
        return look

    for pair in pairs or ():
        one, other = (look_of(entry.parameters[n]) for n in pair)
        if one != other:
            same[one] = other
    met = _met(entry)
    beside: dict[int, set[Hashable]] = {}
    for position in entry.parameters:
        beside.setdefault(met[position], set()).add(look_of(position))
    numbers_by_look: dict[Hashable, list[int]] = {}
    for number, position in enumerate(entry.parameters):
        shape = entry.instructions[position].shape
        if isinstance(shape, ArrayShape) and shape.dimensions:
            look = looks[position]
            if pairs is not None:
                look = (look_of(position), frozenset(beside[met[position]]))
            numbers_by_look.setdefault((shape, look), []).append(number)
    return [tuple(numbers) for numbers in numbers_by_look.values()]


def _large_results(
    module: Module, state: Collection[int], least_bytes: int
) -> list[tuple[int, ...]]:
    """Return the numbers of large results that are no state, those of one type and shape together.

    `least_bytes`: of one that is large. A result that is not made from parameters that are divided,
    as a cache that begins with zeros, is divided where somebody says so.
    """
    entry = module.entry
    shapes = leaves_of(entry.instructions[entry.root].shape)
    numbers_by_shape: dict[Hashable, list[int]] = {}
    for number, shape in enumerate(shapes):
        if number not in state and shape.dimensions and shape.byte_count >= least_bytes:
            numbers_by_shape.setdefault((shape.element_type.name, shape.dimensions), []).append(
                number
            )
    return [tuple(numbers) for numbers in numbers_by_shape.values()]
