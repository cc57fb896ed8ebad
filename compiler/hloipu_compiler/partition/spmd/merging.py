"""Merges small collectives of the same devices into one of several arrays.

Devices that meet wait for the slowest link, however little they send: two small sums cost twice
what both together do. Collectives merge where none needs another's result: those with as many
collectives after them on their longest way, of one kind, groups, reducer and element type. Counted
from the end, gradients come together, and what is gathered is gathered no sooner than needed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, array_shape
from hloipu_compiler.passes.framework.names import Names

_MERGED = frozenset("all-reduce all-gather reduce-scatter".split())
_MOST_BYTES = 2**18
"""Of the operands of one collective: about what an all-reduce of 8 IPUs sends in the time that its
14 phases wait, 1.4 thousand cycles each at 20.4 bytes a cycle (assumed from docs/machine-model.md).
More would save little, and keep more alive."""

Group = tuple[int, ...]
"""Positions of collectives that become one."""


Places = Mapping[tuple[str, str], int]
"""The IPU of ops, by computation and name."""


def with_merged_collectives(module: Module, places: Places = MappingProxyType({})) -> Module:
    """Return a verified module whose small collectives are merged, those of each IPU.

    `places`: of ops that are on other IPUs than the rest of their computation.
    """
    computations = tuple(_merged(module, c, places) for c in module.computations)
    return replace(module, computations=computations)


def _merged(module: Module, computation: Computation, places: Places) -> Computation:
    ordered = any("control-predecessors" in op.attributes for op in computation.instructions)
    groups = [] if ordered else list(_groups(module, computation, places))
    return _written(computation, groups) if groups else computation


def _groups(module: Module, computation: Computation, places: Places) -> Iterator[Group]:
    after = [0] * len(computation.instructions)
    """For each instruction the collectives on the longest way from its result."""
    for position in reversed(range(len(computation.instructions))):
        op = computation.instructions[position]
        own = after[position] + (op.opcode in _MERGED)
        for i in op.operands:
            after[i] = max(after[i], own)
    alike: dict[tuple[object, ...], list[int]] = {}
    for position, op in enumerate(computation.instructions):
        if op.opcode in _MERGED and isinstance(op.shape, ArrayShape):
            place = places.get((computation.name, op.name))
            alike.setdefault((after[position], place, *_kind(module, op)), []).append(position)
    for positions in alike.values():
        group: list[int] = []
        total = 0
        for position in positions:
            (operand,) = computation.instructions[position].operands
            shape = array_shape(computation.instructions[operand].shape)
            if group and total + shape.byte_count > _MOST_BYTES:
                if len(group) > 1:
                    yield tuple(group)
                group, total = [], 0
            group.append(position)
            total += shape.byte_count
        if len(group) > 1:
            yield tuple(group)


def _kind(module: Module, op: Instruction) -> tuple[object, ...]:
    """Return what collectives that merge have in common."""
    reducer = op.attributes.text("to_apply")
    if reducer:
        known = module.computation[reducer]
        root = known.instructions[known.root]
        if sorted(root.operands) == sorted(known.parameters):
            reducer = root.opcode
    assert isinstance(op.shape, ArrayShape)
    dimensions = op.attributes.integers("dimensions") if "dimensions" in op.attributes else ()
    groups = op.attributes.replica_groups().groups
    global_ids = op.attributes.flag("use_global_device_ids")
    has_channel = op.attributes.integer("channel_id") > 0
    return op.opcode, groups, global_ids, has_channel, reducer, op.shape.element_type, dimensions


def _written(computation: Computation, groups: list[Group]) -> Computation:
    """Return a computation with merged collectives, its other ops in their order."""
    old = computation.instructions
    names = Names(op.name for op in old)
    group_of = {position: group for group in groups for position in group}
    leader = {position: group[0] for position, group in group_of.items()}
    needed: dict[int, set[int]] = {}
    """For each op that is written, the others that have to stand before it."""
    for position, op in enumerate(old):
        own = needed.setdefault(leader.get(position, position), set())
        own.update(leader.get(i, i) for i in op.operands)
    users: dict[int, list[int]] = {}
    for position, own in needed.items():
        for i in own:
            users.setdefault(i, []).append(position)
    left = {position: len(own) for position, own in needed.items()}
    ready = [position for position, count in left.items() if not count]
    heapify(ready)
    place: dict[int, int] = {}
    instructions: list[Instruction] = []
    while ready:
        position = heappop(ready)
        group = group_of.get(position)
        if group is None:
            operands = tuple(place[i] for i in old[position].operands)
            place[position] = len(instructions)
            instructions.append(old[position]._replace(operands=operands))
        else:
            together = tuple(place[i] for each in group for i in old[each].operands)
            shape = TupleShape(tuple(old[each].shape for each in group))
            at = len(instructions)
            instructions.append(
                old[position]._replace(
                    name=names.fresh(old[position].name), shape=shape, operands=together
                )
            )
            for index, each in enumerate(group):
                x = old[each]
                place[each] = len(instructions)
                instructions.append(element_of(x.name, at, index, x.shape, x.metadata))
        for user in users.get(position, ()):
            left[user] -= 1
            if not left[user]:
                heappush(ready, user)
    return replace(computation, instructions=tuple(instructions), root=place[computation.root])
