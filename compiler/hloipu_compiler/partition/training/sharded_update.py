"""Shards the update: each of R replicas keeps and updates one part of the state.

Arrays are taken flat, in R parts of one size, zeros behind the last element. Gradients that only
parts of the update read are combined by a reduce-scatter, in place of an all-reduce; new weights
are put together by an all-gather, which are the two halves of an all-reduce. Optimizer state stays
in parts (Rajbhandari et al.: ZeRO, 1910.02054, stage 1; Graphcore's replicated tensor sharding).

State that is read by elementwise ops only, and by nothing but what they make, can be split over the
replicas: each updates its part. With the state goes every op that depends on it, and every
elementwise op that is read by those alone; a gradient that only they read comes in parts, too.
Anything else that looks at the state or its followers, such as a norm, keeps it whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups, SliceRange
from hloipu_compiler.ir.graph import Computation, Instruction, Module, combiner
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, array_shape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_compiler.plan.pipelining import Pipelining
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType

_NOT_SPLIT = frozenset({"stochastic-convert"})
_SCALARS = frozenset({"clamp", "select"})
"""Ops some of whose operands may be scalars."""


@dataclass(slots=True)
class Cluster:
    """Ops by position, with the parameter whose state they follow."""

    owner: dict[int, int] = field(default_factory=dict)

    def __contains__(self, position: int) -> bool:
        return position in self.owner


def clusters(computation: Computation, state: Mapping[int, int]) -> tuple[Cluster, dict[int, int]]:
    """Return what is done in parts, and which of the state: position of the parameter -> result.

    `state`: by position of the parameter, the number of the result that is its next value.
    """
    cluster, kept = Cluster(), {}
    for position, result in state.items():
        followers = _followers(computation, position)
        if followers is not None:
            kept[position] = result
            for follower in followers:
                cluster.owner.setdefault(follower, position)
    _pull_back(computation, cluster)
    return cluster, kept


def dimensions_of(op: Instruction) -> tuple[int, ...] | None:
    """Return the sizes of an array; None of a tuple."""
    return op.shape.dimensions if isinstance(op.shape, ArrayShape) else None


def is_split(computation: Computation, op: Instruction) -> bool:
    """Whether an op can be done on parts of arrays that are split alike."""
    sizes = dimensions_of(op)
    if op.opcode not in ELEMENTWISE or op.opcode in _NOT_SPLIT or not sizes:
        return False
    for i in op.operands:
        sizes_of_operand = dimensions_of(computation.instructions[i])
        if sizes_of_operand != sizes and not (sizes_of_operand == () and op.opcode in _SCALARS):
            return False
    return True


def _followers(computation: Computation, start: int) -> set[int] | None:
    """Return a parameter and all that depends on it; None where some of that is not elementwise."""
    seen = {start}
    sizes = dimensions_of(computation.instructions[start])
    for position in range(len(computation.instructions)):
        op = computation.instructions[position]
        if position == computation.root or seen.isdisjoint(op.operands):
            continue
        if not is_split(computation, op) or dimensions_of(op) != sizes:
            return None
        seen.add(position)
    return seen


def _pull_back(computation: Computation, cluster: Cluster) -> None:
    """Add ops that can be split and that nothing but the cluster reads."""
    for position in reversed(range(len(computation.instructions))):
        op = computation.instructions[position]
        users = computation.users[position]
        if position in cluster or not users or not is_split(computation, op):
            continue
        if all(user in cluster for user in users):
            cluster.owner[position] = cluster.owner[users[0]]


LEAST_PART_BYTES = 128
"""Smaller arrays stay whole: Graphcore's `minimum_remote_tensor_size`."""

Element = tuple[str, int]
_U32 = ELEMENT_TYPES["u32"]


class ShardedUpdate(NamedTuple):
    """What was made."""

    module: Module
    whole: Mapping[int, tuple[int, ...]]
    """Parameters of state in parts -> the shape of the whole array."""
    combined: frozenset[Element]
    """Gradients, by call and element, that the update itself combines over the replicas."""


def sharded_update(
    module: Module, pipelining: Pipelining, wrapping: Wrapping, replicas: int
) -> ShardedUpdate:
    """Return the module with its update in parts, as far as that can be; its values stay."""
    unchanged = ShardedUpdate(module, {}, frozenset())
    if not pipelining.update or replicas < 2:
        return unchanged
    update = _Update(module, pipelining, wrapping, replicas)
    cluster, kept = clusters(update.computation, update.candidates())
    if not kept:
        return unchanged
    return _Rewriting(update, cluster, kept).rewritten()


@dataclass
class _Update:
    """The update's call and what its operands and results are."""

    module: Module
    pipelining: Pipelining
    wrapping: Wrapping
    replicas: int

    def __post_init__(self) -> None:
        self.entry = self.module.entry
        self.call = self.entry[self.pipelining.update]
        self.at = self.entry.position[self.pipelining.update]
        self.computation = self.module.computation[self.call.attributes.called[0]]
        self.parameters = self.computation.parameters

    def candidates(self) -> dict[int, int]:
        """Return state that only the update reads: position of the parameter -> result."""
        kept = dict(self.pipelining.per_micro_batch)
        roots = self.entry.instructions[self.entry.root].operands
        result_by_parameter = {}
        for pair in self.wrapping.state:
            entry_at = self.entry.parameters[pair.parameter]
            op = self.entry.instructions[entry_at]
            if pair.parameter in kept or self.entry.users[entry_at] != (self.at,):
                continue
            if self.call.operands.count(entry_at) != 1 or not self._is_large(op.shape):
                continue
            result = roots[pair.result]
            taken = self.entry.instructions[result]
            if taken.opcode != "get-tuple-element" or taken.operands != (self.at,):
                continue
            if roots.count(result) != 1 or len(self.entry.users[result]) > 1:
                continue
            operand = self.parameters[self.call.operands.index(entry_at)]
            result_by_parameter[operand] = taken.attributes.integer("index")
        return result_by_parameter

    def _is_large(self, shape: Shape) -> bool:
        if not isinstance(shape, ArrayShape) or not shape.dimensions:
            return False
        bits = prod(shape.dimensions) * shape.element_type.bits
        return bits >= 8 * LEAST_PART_BYTES * self.replicas

    def gradient(self, position: int) -> Element | None:
        """Return the gradient that a parameter of the update is, if it is one."""
        number = self.computation.instructions[position].parameter_number
        op = self.entry.instructions[self.call.operands[number]]
        if op.opcode != "get-tuple-element":
            return None
        element = (self.entry.instructions[op.operands[0]].name, op.attributes.integer("index"))
        known = {(a.call, a.element) for a in self.pipelining.accumulations}
        return element if element in known else None

    def ipu_of_gradient(self, element: Element) -> int:
        accumulations = self.pipelining.accumulations
        return next(
            accumulation.ipu
            for accumulation in accumulations
            if (accumulation.call, accumulation.element) == element
        )

    def ipu_of_state(self, position: int) -> int:
        number = self.computation.instructions[position].parameter_number
        op = self.entry.instructions[self.call.operands[number]]
        return self.pipelining.homes.get(op.parameter_number, 0)


class _Rewriting:
    """The new update under construction; positions are those of the old one unless said."""

    def __init__(self, update: _Update, cluster: Cluster, kept: Mapping[int, int]) -> None:
        self.update = update
        self.old = update.computation
        self.cluster = cluster
        self.kept = kept
        self.draft = Draft(update.module, self.old)
        self.whole: dict[int, int] = {}
        """Position -> new position of the whole value."""
        self.part: dict[int, int] = {}
        self.start: dict[int, int] = {}
        """Size of a part -> new position of where this replica's begins."""
        self.names = Names(c.name for c in update.module.computations)
        self.reducers: dict[str, Computation] = {}
        self.combined: set[Element] = set()

    def rewritten(self) -> ShardedUpdate:
        old, draft = self.old, self.draft
        for position in old.parameters:
            self._parameter(position)
        self._scatter_gradients()
        for position, op in enumerate(old.instructions):
            if position == old.root or op.parameter_number >= 0:
                continue
            if position in self.cluster:
                operands = tuple(self._part(i) for i in op.operands)
                shape = self._part_shape(op)
                self.part[position] = draft.append(op._replace(operands=operands, shape=shape))
            else:
                operands = tuple(self.whole[i] for i in op.operands)
                self.whole[position] = draft.append(op._replace(operands=operands))
        self._gather_results()
        root = old.instructions[old.root]
        results = []
        for number, position in enumerate(root.operands):
            stays = number in self.kept.values()
            results.append(self._part(position) if stays else self.whole[position])
        together = TupleShape(tuple(draft.shape(i) for i in results))
        at = draft.append(root._replace(operands=tuple(results), shape=together))
        computation = replace(old, instructions=tuple(draft.made), root=at)
        return self._finished(computation, together)

    def _parameter(self, position: int) -> None:
        op = self.old.instructions[position]
        if position in self.kept:
            self.part[position] = self.draft.append(op._replace(shape=self._part_shape(op)))
        else:
            self.whole[position] = self.draft.append(op)

    # --- from whole to parts and back -------------------------------------------------------------

    def _scatter_gradients(self) -> None:
        """Combine gradients that only parts read: one reduce-scatter for each IPU and type."""
        groups: dict[tuple[int, str], list[int]] = {}
        for position in self.old.parameters:
            op = self.old.instructions[position]
            element = self.update.gradient(position)
            users = self.old.users[position]
            if element is None or not users or not all(u in self.cluster for u in users):
                continue
            if not array_shape(op.shape).element_type.is_float:
                continue
            self.combined.add(element)
            key = (self.update.ipu_of_gradient(element), array_shape(op.shape).element_type.name)
            groups.setdefault(key, []).append(position)
        for (_, kind), positions in groups.items():
            self._scattered(kind, positions)

    def _scattered(self, kind: str, positions: Sequence[int]) -> None:
        draft, first = self.draft, self.old.instructions[positions[0]]
        flat = [self._flat(self.old.instructions[i], self.whole[i]) for i in positions]
        shapes = [self._part_shape(self.old.instructions[i]) for i in positions]
        how = self._reducer(kind)
        attributes = Attributes(
            {"replica_groups": self._everyone(), "dimensions": (0,), "to_apply": how}, (how,)
        )
        for position, total in zip(
            positions, self._met(first, "reduce-scatter", flat, shapes, attributes), strict=True
        ):
            shape = draft.shape(total)
            literal = Literal(repr(1 / self.update.replicas))
            share = draft.add(first, "constant", plain(ELEMENT_TYPES[kind], ()), literal=literal)
            share = draft.add(first, "broadcast", shape, (share,), Attributes({"dimensions": ()}))
            self.part[position] = draft.add(first, "multiply", shape, (total, share))

    def _gather_results(self) -> None:
        """Put what leaves the update whole together: one all-gather for each IPU."""
        groups: dict[int, list[int]] = {}
        root = self.old.instructions[self.old.root]
        for number, position in enumerate(root.operands):
            if position in self.whole or number in self.kept.values():
                continue
            ipu = self.update.ipu_of_state(self.cluster.owner[position])
            if position not in groups.setdefault(ipu, []):
                groups[ipu].append(position)
        for positions in groups.values():
            first = self.old.instructions[positions[0]]
            parts = [self._part(i) for i in positions]
            count = self.update.replicas
            shapes = []
            for part in parts:
                shape = array_shape(self.draft.shape(part))
                shapes.append(plain(shape.element_type, (count * shape.dimensions[0],)))
            attributes = Attributes({"replica_groups": self._everyone(), "dimensions": (0,)})
            gathered_parts = self._met(first, "all-gather", parts, shapes, attributes)
            for position, gathered in zip(positions, gathered_parts, strict=True):
                self.whole[position] = self._in_shape(self.old.instructions[position], gathered)

    def _met(
        self,
        like: Instruction,
        opcode: str,
        operands: Sequence[int],
        shapes: Sequence[ArrayShape],
        attributes: Attributes,
    ) -> list[int]:
        draft = self.draft
        if len(operands) == 1:
            return [draft.add(like, opcode, shapes[0], operands, attributes)]
        at = draft.add(like, opcode, TupleShape(tuple(shapes)), operands, attributes)
        return [draft.element(like, at, number) for number in range(len(shapes))]

    def _part(self, position: int) -> int:
        """Return this replica's part of a value; scalars are whole everywhere."""
        op = self.old.instructions[position]
        if position in self.part:
            return self.part[position]
        if not array_shape(op.shape).dimensions:
            return self.whole[position]
        shape = self._part_shape(op)
        if op.opcode == "broadcast" and not op.attributes.integers("dimensions"):
            at = self.draft.append(
                op._replace(
                    name=self.draft.fresh_name(op.name), shape=shape,
                    operands=(self.whole[op.operands[0]],),
                )
            )  # fmt: skip
        else:
            flat = self._flat(op, self.whole[position])
            sizes = Attributes({"dynamic_slice_sizes": shape.dimensions})
            operands = (flat, self._start(op, shape.dimensions[0]))
            at = self.draft.add(op, "dynamic-slice", shape, operands, sizes)
        self.part[position] = at
        return at

    def _part_shape(self, op: Instruction) -> ArrayShape:
        shape = array_shape(op.shape)
        return plain(shape.element_type, (-(-prod(shape.dimensions) // self.update.replicas),))

    def _flat(self, op: Instruction, at: int) -> int:
        """Return a whole value in one dimension, with zeros up to R parts."""
        shape, draft = array_shape(op.shape), self.draft
        count = prod(shape.dimensions)
        padded = self._part_shape(op).dimensions[0] * self.update.replicas
        at = draft.add(op, "reshape", plain(shape.element_type, (count,)), (at,))
        if padded == count:
            return at
        zero = draft.add(op, "constant", plain(shape.element_type, ()), literal=_zero(shape))
        rest = plain(shape.element_type, (padded - count,))
        zeros = draft.add(op, "broadcast", rest, (zero,), Attributes({"dimensions": ()}))
        whole = plain(shape.element_type, (padded,))
        return draft.add(op, "concatenate", whole, (at, zeros), Attributes({"dimensions": (0,)}))

    def _in_shape(self, op: Instruction, at: int) -> int:
        """Return a flat value in its own shape, without what is behind its last element."""
        shape, draft = array_shape(op.shape), self.draft
        count = prod(shape.dimensions)
        if array_shape(draft.shape(at)).dimensions != (count,):
            cut = Attributes({"slice": (SliceRange(0, count),)})
            at = draft.add(op, "slice", plain(shape.element_type, (count,)), (at,), cut)
        return draft.add(op, "reshape", plain(shape.element_type, shape.dimensions), (at,))

    def _start(self, op: Instruction, size: int) -> int:
        if size not in self.start:
            draft, number = self.draft, plain(_U32, ())
            me = draft.add(op, "replica-id", number)
            step = draft.add(op, "constant", number, literal=Literal(str(size)))
            self.start[size] = draft.add(op, "multiply", number, (me, step))
        return self.start[size]

    def _everyone(self) -> ReplicaGroups:
        return ReplicaGroups((tuple(range(self.update.replicas)),))

    def _reducer(self, kind: str) -> str:
        if kind not in self.reducers:
            name = self.names.fresh("total_over_replicas")
            self.reducers[kind] = combiner(name, "add", plain(ELEMENT_TYPES[kind], ()))
        return self.reducers[kind].name

    # --- around the update ------------------------------------------------------------------------

    def _finished(self, computation: Computation, shape: TupleShape) -> ShardedUpdate:
        """Return the module whose entry gives and takes parts of the state."""
        update, entry = self.update, self.update.entry
        instructions = list(entry.instructions)
        whole = {}
        for position, result in self.kept.items():
            op = self.old.instructions[position]
            at = update.call.operands[op.parameter_number]
            parameter = instructions[at]
            whole[parameter.parameter_number] = array_shape(parameter.shape).dimensions
            instructions[at] = parameter._replace(shape=self._part_shape(parameter))
            for user in entry.users[update.at]:
                taken = instructions[user]
                if taken.attributes.integer("index") == result:
                    instructions[user] = taken._replace(shape=self._part_shape(taken))
        instructions[update.at] = update.call._replace(shape=shape)
        root = instructions[entry.root]
        results = TupleShape(tuple(instructions[i].shape for i in root.operands))
        instructions[entry.root] = root._replace(shape=results)
        changed = {
            self.old.name: computation,
            entry.name: replace(entry, instructions=tuple(instructions)),
        }
        computations = tuple(changed.get(c.name, c) for c in update.module.computations)
        added = tuple(self.reducers.values())
        at_entry = update.module.entry_position + len(added)
        module = replace(
            update.module, computations=(*added, *computations), entry_position=at_entry
        )
        return ShardedUpdate(module, whole, frozenset(self.combined))


def _zero(shape: ArrayShape) -> Literal:
    kind: ElementType = shape.element_type
    return Literal("false" if kind.name == "pred" else "0")
