"""What carries shardings from value to value: the ops of a module with rules for their dimensions.

Arrays have numbers. Tuples and what is taken out of them have none of their own: their leaves are
those of what they are made of. A constant has one for each use, since uses need not agree on it.
"""

from collections.abc import Sequence
from enum import Enum, auto

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.ir.annotations import PARTITIONED_TARGET, is_border, is_identity
from hloipu_compiler.ir.dimension_rules import dimension_rule
from hloipu_compiler.ir.factors import DimensionRule, Factor, FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaf_range, leaves_of
from hloipu_compiler.partition.spmd.axes import factor_places
from hloipu_compiler.partition.spmd.reading import GROUP, Key, Stated
from hloipu_runtime.frozen import dataclass


class Direction(Enum):
    """Which arrays of an op may follow others."""

    BOTH = auto()
    FORWARD = auto()
    BACKWARD = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Link:
    """One op, or one leaf of an op that only hands leaves on."""

    key: Key
    rule: DimensionRule
    arrays: tuple[int, ...]
    """Of operands, then of results."""
    opcode: str
    """Or `edge` into and out of computations, `group` of what is to be sharded alike."""
    direction: Direction = Direction.BOTH
    repeats: bool = False
    """Whether the result has elements of the operand many times: a broadcast."""


@dataclass(frozen=True, slots=True)
class Links:
    """The arrays and ops of a module."""

    shapes: list[ArrayShape]
    """Of the arrays, by number."""
    owners: list[tuple[Key, int]]
    """The op and leaf that each array is, or the user and operand leaf of a constant's use."""
    results: dict[Key, tuple[int, ...]]
    """The arrays of each op's result, leaf by leaf."""
    uses: dict[int, list[int]]
    """Of each constant's array, those of its uses."""
    links: list[Link]
    places: dict[int, list[list[tuple[int, int, int]]]]
    """Of the factors of each rule that was looked at, by its identity."""


StatePairs = Sequence[tuple[int, int]]
"""Numbers of a parameter and of the result that is its next value, arrays counted."""

_HANDED_ON = frozenset("opt-barrier domain copy".split())
ALIASES = frozenset("tuple get-tuple-element".split())
"""Opcodes whose results are arrays of their operands."""
_EDGE, _GROUP = "edge", "group"


def identity_rule(shape: ArrayShape) -> DimensionRule:
    """Return the rule of what hands an array on."""
    sizes = shape.dimensions
    factors = tuple(Factor(n, FactorKind.PASS_THROUGH) for n in sizes)
    dimensions = tuple((i,) for i in range(len(sizes)))
    return DimensionRule(factors, (dimensions,), (dimensions,))


def region_rule(outer: ArrayShape, inner: ArrayShape) -> DimensionRule:
    """Return the rule of a border of a manual region, from one side of which to the other.

    Dimensions that manual axes divide are larger outside; other axes divide both sides alike.
    """
    factors: list[Factor] = []
    sides: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    for n, m in zip(outer.dimensions, inner.dimensions, strict=True):
        own = len(factors)
        factors.append(Factor(min(n, m), FactorKind.PASS_THROUGH))
        blocks = max(n, m) // max(1, min(n, m))
        if blocks > 1:
            factors.append(Factor(blocks, FactorKind.PASS_THROUGH))
        for side, size in zip(sides, (n, m), strict=True):
            side.append((own + 1, own) if size > min(n, m) else (own,))
    return DimensionRule(tuple(factors), (tuple(sides[0]),), (tuple(sides[1]),))


def links_of(module: Module, stated: Stated, state: StatePairs = ()) -> Links:
    """Return the arrays of a verified module and the ops that link them.

    `state`: parameters and results of the entry that are to be divided alike.
    """
    return _Linking(module, stated).links(state)


class _Linking:
    def __init__(self, module: Module, stated: Stated) -> None:
        self.module = module
        self.stated = stated
        self.found = Links([], [], {}, {}, [], {})
        self.identities: dict[ArrayShape, DimensionRule] = {}
        self.results: Key = (module.entry.name, module.entry.root)
        """What the entry gives, which need not be divided as what it is made of."""

    def links(self, state: StatePairs) -> Links:
        """Walk over all computations that run, callees before their callers."""
        for computation in callees_first(self.module, only_reachable=True):
            for position, x in enumerate(computation.instructions):
                self._walk(computation, position, x)
        self._groups()
        entry = self.module.entry
        given, results = self._parameters(entry.name), self._root(entry.name)
        for parameter, result in state:
            key = (entry.name, entry.root)
            self._hand_on(key, given[parameter], results[result], _EDGE)
        self.found.links[:] = self._in_order()
        return self.found

    def _in_order(self) -> list[Link]:
        """Return the links as values flow: those of a callee between its arguments and results.

        A computation with several callers stands with the first.
        """
        each: dict[Key, list[Link]] = {}
        for link in self.found.links:
            each.setdefault(link.key, []).append(link)
        ordered: list[Link] = []
        entry = self.module.entry.name
        seen = {entry}
        todo: list[Key | list[Link]] = [(entry, 0)]
        while todo:
            task = todo.pop()
            if isinstance(task, list):
                ordered += task
                continue
            name, position = task
            computation = self.module.computation[name]
            if position == len(computation.instructions):
                continue
            todo.append((name, position + 1))
            x = computation.instructions[position]
            own = each.get(task, [])
            called = [] if _applies(x) else [c for c in x.attributes.called if c not in seen]
            given = {a for c in called for a in self._parameters(c)}
            ordered += [link for link in own if link.arrays[-1] in given]
            todo.append([link for link in own if link.arrays[-1] not in given])
            seen.update(called)
            todo += [(c, 0) for c in reversed(called)]
        return ordered

    def _array(self, key: Key, leaf: int, shape: ArrayShape) -> int:
        self.found.shapes.append(shape)
        self.found.owners.append((key, leaf))
        return len(self.found.shapes) - 1

    def _walk(self, computation: Computation, position: int, x: Instruction) -> None:
        key = (computation.name, position)
        operands = self._operands(computation, x)
        if x.opcode in ALIASES and key not in self.stated.shardings and key != self.results:
            self.found.results[key] = operands[self._slice(computation, x, len(operands))]
            return
        results = tuple(self._array(key, i, leaf) for i, leaf in enumerate(leaves_of(x.shape)))
        self.found.results[key] = results
        if _is_cheap(computation, x):
            for array in results:
                self.found.uses[array] = []
        if x.opcode in ALIASES:
            operands = operands[self._slice(computation, x, len(operands))]
        if x.attributes.called and not _applies(x):
            self._calls(key, x, operands, results)
        elif self._hands_on(x):
            for a, b in zip(self._used(key, operands), results, strict=False):
                self._hand_on(key, a, b, x.opcode, _direction(x))
        elif x.operands and not is_border(x):
            self._link(key, x, computation, self._used(key, operands))

    def _slice(self, computation: Computation, x: Instruction, count: int) -> slice:
        """Return which leaves of the operands an element or a tuple has."""
        if x.opcode == "tuple":
            return slice(0, count)
        whole = computation.instructions[x.operands[0]].shape
        if not isinstance(whole, TupleShape):
            return slice(0, count)
        return leaf_range(whole, x.attributes.integer("index"))

    def _operands(self, computation: Computation, x: Instruction) -> tuple[int, ...]:
        results, name = self.found.results, computation.name
        return tuple(array for i in x.operands for array in results[name, i])

    def _used(self, key: Key, operands: Sequence[int]) -> tuple[int, ...]:
        """Return operands, with an array of its own for each use of a constant."""
        return tuple(self._use(key, number, array) for number, array in enumerate(operands))

    def _use(self, key: Key, number: int, array: int) -> int:
        uses = self.found.uses.get(array)
        if uses is None:
            return array
        use = self._array(key, number, self.found.shapes[array])
        uses.append(use)
        return use

    def _hands_on(self, x: Instruction) -> bool:
        is_call = x.opcode == "custom-call" and x.attributes.text("custom_call_target") != GROUP
        return x.opcode in _HANDED_ON or x.opcode in ALIASES or (is_call and is_identity(x))

    def _hand_on(
        self, key: Key, a: int, b: int, opcode: str, direction: Direction = Direction.BOTH
    ) -> None:
        shape = self.found.shapes[b]
        if not shape.dimensions or self.found.shapes[a].dimensions != shape.dimensions:
            return
        if shape not in self.identities:
            self.identities[shape] = identity_rule(shape)
        self.found.links.append(Link(key, self.identities[shape], (a, b), opcode, direction))

    def _link(
        self, key: Key, x: Instruction, computation: Computation, operands: tuple[int, ...]
    ) -> None:
        shapes = [computation.instructions[i].shape for i in x.operands]
        rule = dimension_rule(x, shapes)
        arrays = (*operands, *self.found.results[key])
        each = factor_places(rule)
        if any(len(places) > 1 for places in each):
            repeats = any(
                all(array >= len(operands) for array, _, _ in places)
                and factor.kind is FactorKind.PASS_THROUGH
                and factor.size > 1
                for factor, places in zip(rule.factors, each, strict=True)
            )
            self.found.links.append(Link(key, rule, arrays, x.opcode, repeats=repeats))

    def _calls(
        self, key: Key, x: Instruction, operands: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        """Link arguments with parameters and roots with results; a loop's state is one array."""
        if x.opcode == "conditional":
            first = 1
            for name in x.attributes.called:
                shape_count = len(self._parameters(name))
                self._pairs(key, operands[first : first + shape_count], self._parameters(name))
                self._pairs(key, self._root(name), results)
                first += shape_count
            return
        for name in x.attributes.called:
            self._pairs(key, operands, self._parameters(name))
            if x.opcode == "while":
                self._pairs(key, self._parameters(name), results)
            if x.opcode != "while" or name == x.attributes.text("body"):
                self._pairs(key, self._root(name), results)

    def _pairs(self, key: Key, sources: Sequence[int], targets: Sequence[int]) -> None:
        if len(sources) == len(targets):
            for a, b in zip(self._used(key, sources), targets, strict=True):
                self._hand_on(key, a, b, _EDGE)

    def _parameters(self, name: str) -> tuple[int, ...]:
        computation = self.module.computation[name]
        results = self.found.results
        return tuple(a for i in computation.parameters for a in results[name, i])

    def _root(self, name: str) -> tuple[int, ...]:
        return self.found.results[name, self.module.computation[name].root]

    def _groups(self) -> None:
        first: dict[str, int] = {}
        for key, group in self.stated.groups.items():
            name, position = key
            if key not in self.found.results:
                continue
            x = self.module.computation[name].instructions[position]
            named = x.attributes.text("custom_call_target") == GROUP and x.operands
            array = self.found.results[(name, x.operands[0]) if named else key][0]
            known = first.setdefault(group, array)
            if known != array:
                self._hand_on(key, known, array, _GROUP)


def _applies(x: Instruction) -> bool:
    """Whether an op's computations are of elements."""
    if x.opcode == "custom-call":
        return x.attributes.text("custom_call_target") != PARTITIONED_TARGET
    return Trait.APPLIER in OPS[x.opcode].traits


def _is_cheap(computation: Computation, x: Instruction) -> bool:
    """Whether each user can have one of its own, divided as it likes, for nothing."""
    if x.opcode in ("constant", "iota"):
        return True
    operands = [computation.instructions[i] for i in x.operands]
    splat = operands and all(o.opcode == "constant" and not _rank(o) for o in operands)
    return bool(splat) and Trait.DATA_MOVEMENT in OPS[x.opcode].traits


def _rank(x: Instruction) -> int:
    return len(x.shape.dimensions) if isinstance(x.shape, ArrayShape) else 1


def _direction(x: Instruction) -> Direction:
    """Return where a barrier lets shardings through.

    GSPMD's own: openxla/xla `xla/service/spmd/shard_barrier_partitioner.h`.
    """
    target = x.attributes.text("custom_call_target")
    if target != "xla.sdy.PropagationBarrier":
        gspmd = {"ShardBarrierFrom": Direction.BACKWARD, "ShardBarrierTo": Direction.FORWARD}
        return gspmd.get(target, Direction.BOTH)
    said = read_frontend_attributes(x.attributes.text("frontend_attributes"))
    number = said.get("xla.sdy.allowed_direction", "0").split(":")[0].strip()
    named = {"1": Direction.FORWARD, "2": Direction.BACKWARD, "3": Direction.BOTH}
    return named.get(number, Direction.NONE)
