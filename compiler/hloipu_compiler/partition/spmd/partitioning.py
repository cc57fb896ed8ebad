"""A module with sharding annotations as one program for all IPUs, and how its arrays are divided.

State keeps its blocks from step to step: a parameter and the result that is its next value are
divided alike, also where the text says nothing of the result, or another thing. Users see whole
arrays, so that only the collectives change by it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.attributes.sharding import Sharding, read_sharding
from hloipu_compiler.ir.annotations import OF_A_QUEUE, is_border
from hloipu_compiler.ir.attributes import Attributes, Raw, ReplicaGroups, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import Shape, TupleShape, leaves_of
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.spmd.axes import DeviceAxes
from hloipu_compiler.partition.spmd.cuts import ON_BLOCKS
from hloipu_compiler.partition.spmd.links import StatePairs
from hloipu_compiler.partition.spmd.localizing import (
    Localizing,
    Queue,
    entry_splits,
    moved_out_of_loops,
)
from hloipu_compiler.partition.spmd.merging import with_merged_collectives
from hloipu_compiler.partition.spmd.propagating import propagated
from hloipu_compiler.partition.spmd.reading import (
    CONSTRAINT,
    Stated,
    not_followed,
    partitioned_already,
    require_whole,
    stated_shardings,
)
from hloipu_compiler.partition.spmd.resharding import Splits
from hloipu_compiler.passes.algebra.expand_bitcasts import plain
from hloipu_compiler.passes.algebra.movement import MOVEMENT_RULES, spread, static
from hloipu_compiler.passes.batch_indices import with_batch_indices
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten, with_each, with_operands
from hloipu_compiler.passes.inline_calls import inlined
from hloipu_compiler.passes.loops.scans_as_loops import scans_as_loops
from hloipu_compiler.passes.make_synchronous import made_synchronous
from hloipu_compiler.plan.entry_arrays import aliased
from hloipu_compiler.vendor.expanding import expanded
from hloipu_compiler.verify.sharding_forms import leaf_shardings
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.program import Queue as HostQueue
from hloipu_runtime.program.stacks import PARAMETER, RESULT, STREAM, Divided, Partitioning

_KEPT = ("input_output_alias", "buffer_donor", "replica_count")
"""What the header says of numbers of parameters and results, which stay."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A module written for every partition."""

    module: Module
    apart: Module
    """The same, with small collectives apart: what is cut is merged when it has been cut."""
    partitioning: Partitioning
    axes: DeviceAxes
    queues: Mapping[Queue, tuple[Divided, ...]]
    """What queues of the text's own carry, numbered from 0 in each."""
    notes: tuple[str, ...] = ()
    """What of the text is followed otherwise than it is written, for people."""

    def with_streams(self, queues: Sequence[HostQueue]) -> Partitioning:
        """Return how all arrays are divided, those that a program's own queues carry as well."""
        arrays, first = list(self.partitioning.arrays), 0
        for queue in queues:
            opcode = "infeed" if queue.to_device else "outfeed"
            names = (queue.name, queue.name.removesuffix(f".{opcode}"))
            each = next((self.queues[opcode, n] for n in names if (opcode, n) in self.queues), ())
            if not queue.places:
                arrays += [replace(x, number=first + x.number) for x in each]
            first += len(queue.streams)
        return replace(self.partitioning, arrays=tuple(arrays))

    @property
    def line(self) -> str:
        """Why so many IPUs, for people."""
        count = self.axes.device_count
        sizes = [f"{name}={self.axes.extent(parts)}" for name, parts in self.axes.names if parts]
        mesh = f"a mesh {', '.join(sizes)}" if sizes else f"{count} devices"
        line = f"{count} partitions, an IPU each: sharding annotations for {mesh}"
        return "; ".join((line, *self.notes))


def is_divided(module: Module) -> bool:
    """Whether annotations of a verified module divide an array between devices.

    Not so of a module that is written for each device already, nor of one with manual regions that
    cannot be divided around them: it says itself what each device does. Raises UnsupportedError
    E0476 for shardings that cannot be read.
    """
    return DIVIDED_MEMO.of(Same(module), lambda: _is_divided(module))


DIVIDED_MEMO: Memo[bool] = Memo(2)


def _is_divided(module: Module) -> bool:
    if partitioned_already(module):
        return False
    stated, entry = stated_shardings(module), module.entry
    leaves = [s for shardings in stated.shardings.values() for s in shardings if s is not None]
    if not any(any(s.dimensions) or s.unreduced for s in leaves):
        return False
    if not any(is_border(x) for c in module.computations for x in c.instructions):
        return True
    given = [stated.shardings.get((entry.name, i), ()) for i in entry.parameters]
    if not any(s is not None and any(s.dimensions) for shardings in given for s in shardings):
        return False
    try:
        partitioned(module)
    except UnsupportedError as error:
        if error.code != "E0479":
            raise
        return False
    return True


def partitioned(
    module: Module, state: StatePairs = (), replicas: int = 1, *, gathers_early: bool = True
) -> Partitioned:
    """Return a verified module that `is_divided` as the program of every partition.

    `state`: numbers of the parameters that stay on the device, and of the results that are their
    next values; what the header aliases is such as well. Each replica has its own partitions, which
    meet each other alone. `gathers_early`: what a loop gathers and does not change is gathered
    before it, and whole for as long as it runs. Raises UnsupportedError E0479 for ops that cannot
    be written for each partition, UsageError E0477 for a module that is partitioned already.
    """
    pairs = {(x.parameter, x.result) for x in aliased(module)} | set(state)
    ordered = tuple(sorted(pairs))
    key = Same(module), ordered, replicas, gathers_early
    return PARTITIONED_MEMO.of(key, lambda: _partitioned(module, ordered, replicas, gathers_early))


PARTITIONED_MEMO: Memo[Partitioned] = Memo(4)
"""Modules partitioned; retries, trials of a search and advice begin with the same ones."""


def _partitioned(
    module: Module, state: StatePairs, replicas: int, gathers_early: bool
) -> Partitioned:
    require_whole(module)
    module = ready_to_divide(module)
    stated = stated_shardings(module)
    known = propagated(module, stated, state)
    given, made = entry_splits(module, known, state)
    localizing = Localizing(module, known, gathers_early=gathers_early)
    local = moved_out_of_loops(localizing.module_made(made), gathers_early=gathers_early)
    local = replace(local, attributes=local.attributes.replaced(**_header(module)))
    if replicas > 1:
        local = _for_replicas(local, replicas, known.axes.device_count)
    together = with_merged_collectives(local)
    verify(together)
    ops, entry = module.entry.instructions, module.entry
    parameters = [leaf for i in entry.parameters for leaf in leaves_of(ops[i].shape)]
    arrays = [
        *_divided(PARAMETER, [x.dimensions for x in parameters], given),
        *_divided(RESULT, [x.dimensions for x in leaves_of(ops[entry.root].shape)], made),
    ]
    axes = known.axes
    partitioning = Partitioning(axes.sizes, axes.devices, tuple(arrays))
    queues = {
        # A token is no array that is carried.
        queue: tuple(_divided(STREAM, sizes[:-1], splits[:-1]))
        for queue, (sizes, splits) in localizing.queues.items()
    }
    notes = tuple(_notes(module, stated))
    return Partitioned(together, local, partitioning, axes, queues, notes)


def _notes(module: Module, stated: Stated) -> Iterator[str]:
    if stated.reordered:
        yield (
            f"{stated.reordered} of them list devices in an order that no mesh has, or not all: "
            "their blocks are on devices 0, 1, 2 and so on"
        )
    lone = 0
    for (name, position), shardings in stated.shardings.items():
        leaves = leaves_of(module.computation[name].instructions[position].shape)
        pairs = zip(leaves, shardings, strict=True)
        lone += any(s is not None and s.device >= 0 for x, s in pairs if x.element_type.is_array)
    if lone:
        yield f"{lone} of them name one device: all have these values"


def ready_to_divide(module: Module) -> Module:
    """Return a verified module as its values are divided.

    Library calls are written as ops, which have parts. Bitcasts, which go by layouts of whole
    arrays, are expanded; callers of one computation need not divide their values alike; indices
    that only count are no reason to fetch other rows; scans are written as loops, of which each op
    divides what it can; arrays without elements are made where they are read.
    """
    module = scans_as_loops(_with_stated_ends(made_synchronous(expanded(module))))
    module = with_batch_indices(inlined(module))
    rules = dict.fromkeys(ON_BLOCKS - COLLECTIVES - {"custom-call"}, _without_empty)
    return with_each(module, lambda c: rewritten(module, c, rules) if _has_empty(c) else c)


def _is_empty(shape: Shape) -> bool:
    array = static(shape)
    return array is not None and not array.element_count


def _has_empty(computation: Computation) -> bool:
    return any(_is_empty(x.shape) for x in computation.instructions)


def _without_empty(draft: Draft, x: Instruction) -> Instruction | int | None:
    """Write an array without elements, as a result or an operand, as one number repeated."""

    def nothing(shape: Shape) -> int:
        (array,) = leaves_of(shape)
        kind = array.element_type
        literal = Literal("false" if kind.name == "pred" else "(0, 0)" if kind.is_complex else "0")
        zero = draft.add(x, "constant", plain(kind, ()), literal=literal)
        return spread(draft, x, zero, array)

    if _is_empty(x.shape) and "sharding" not in x.attributes:
        return nothing(x.shape)
    shapes = [draft.shape(i) for i in x.operands]
    operands = [
        nothing(shape) if _is_empty(shape) else i
        for i, shape in zip(x.operands, shapes, strict=True)
    ]
    if tuple(operands) == x.operands:
        return None
    x = with_operands(x, tuple(operands))
    rule = MOVEMENT_RULES.get(x.opcode)
    outcome = rule(draft, x) if rule else None
    return x if outcome is None else outcome


def _with_stated_ends(module: Module) -> Module:
    """Return the module with shardings of calls on their results, of outfeeds on what they take.

    Calls are inlined, and an outfeed's sharding is of its operand.
    """

    def called(draft: Draft, x: Instruction) -> int | None:
        if "sharding" not in x.attributes:
            return None
        said = Attributes({"sharding": x.attributes["sharding"]})
        bare = x._replace(attributes=without(x.attributes, ("sharding",)))
        at = draft.append(bare._replace(name=draft.fresh_name(x.name)))
        if not isinstance(x.shape, TupleShape):
            said = said.replaced(custom_call_target=CONSTRAINT)
            return draft.add(x, "custom-call", x.shape, (at,), said)
        parts = [draft.element(x, at, i) for i in range(len(x.shape.elements))]
        return draft.add(x, "tuple", x.shape, parts, said)

    def constrained(draft: Draft, x: Instruction, at: int, stated: Iterator[Sharding]) -> int:
        shape = draft.shape(at)
        if isinstance(shape, TupleShape):
            parts = [
                constrained(draft, x, draft.element(x, at, i), stated)
                for i in range(len(shape.elements))
            ]
            return draft.add(x, "tuple", shape, parts)
        said: dict[str, Value] = {
            "custom_call_target": CONSTRAINT,
            "sharding": Raw(str(next(stated))),
            "frontend_attributes": OF_A_QUEUE,
        }
        return draft.add(x, "custom-call", shape, (at,), Attributes(said))

    def sent(draft: Draft, x: Instruction) -> Instruction | None:
        text, taken = x.attributes.text("sharding"), draft.shape(x.operands[0])
        stated = leaf_shardings(read_sharding(text), taken) if text else ()
        count = len(leaves_of(taken))
        if not stated or not count:
            return None
        if len(stated) < count:
            raise not_followed(module, f"{len(stated)} stand for {count} arrays", x)
        given = constrained(draft, x, x.operands[0], iter(stated))
        attributes = without(x.attributes, ("sharding",))
        return x._replace(operands=(given, *x.operands[1:]), attributes=attributes)

    return with_each(module, lambda c: rewritten(module, c, {"call": called, "outfeed": sent}))


def _for_replicas(module: Module, replicas: int, partitions: int) -> Module:
    """Return the module with groups of the partitions of every replica."""

    def everywhere(x: Instruction) -> Instruction:
        if not x.attributes.flag("use_global_device_ids"):
            return x
        own = x.attributes.replica_groups().groups
        ids = range(0, replicas * partitions, partitions)
        groups = tuple(tuple(first + i for i in group) for first in ids for group in own)
        return x._replace(attributes=x.attributes.replaced(replica_groups=ReplicaGroups(groups)))

    computations = tuple(
        replace(c, instructions=tuple(map(everywhere, c.instructions))) for c in module.computations
    )
    attributes = module.attributes.replaced(replica_count=replicas)
    return replace(module, computations=computations, attributes=attributes)


def _divided(kind: str, shapes: Sequence[tuple[int, ...]], splits: Splits) -> list[Divided]:
    pairs = enumerate(zip(shapes, splits, strict=True))
    return [Divided(kind, number, shape, split) for number, (shape, split) in pairs]


def _header(module: Module) -> dict[str, Value]:
    """Return what the header of a partitioned module keeps."""
    attributes: dict[str, Value] = {
        name: module.attributes[name] for name in _KEPT if name in module.attributes
    }
    said = read_frontend_attributes(module.attributes.text("frontend_attributes"))
    rest = {name: text for name, text in said.items() if not name.startswith("xla.sdy.")}
    if rest:
        attributes["frontend_attributes"] = Raw(frontend_attributes_text(rest))
    return attributes
