"""Fuses trees of elementwise ops, so that no value between them is stored.

Going backwards, an op joins the group of its users if all of them are in one group of its own
sizes. So no path leaves a group and comes back, whatever else the computation does. Broadcasts and
constant numbers that a group reads are copied into it, for they cost nothing there.

    a = f32[9] multiply(p, q)               f = f32[9] fusion(p, q, r), kind=kLoop
    b = f32[9] broadcast(r), dimensions={}
    c = f32[9] add(a, b)

Before, what is cheaper to compute than to keep is computed at each reader: f16 widened to f32, so
that no f32 is stored (to load it takes as many slots, and accumulators of sums take f16 in as it
is), and a sum or product with what repeats, as a norm's mean or scale, where all readers fuse.

Rounds of integers, as of hashes and generators of random bits, read each value twice: groups of two
users become one, with several results, where all else that reads these comes after the group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import (
    Computation,
    Instruction,
    Module,
    control_predecessors,
    element_of,
)
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.passes.algebra.movement import static
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import FLAT_CALLS, NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import (
    Draft,
    Rewriting,
    Rule,
    rewritten_in_place,
    with_operands,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import F32
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.reached import reached

FUSIBLE = frozenset(
    name
    for name, op in OPS.items()
    if Trait.ELEMENTWISE in op.traits and Trait.LEGACY not in op.traits
)


def elementwise_fused(
    module: Module, most_ops: int, ipus: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Module:
    """Return the module with groups of elementwise ops as fusions; the same one without any.

    Ops that are to run on different IPUs are not put together.
    """

    def fused(computation: Computation, names: Names) -> tuple[Computation, list[Computation]]:
        groups = _groups(computation, most_ops, ipus)
        return _fused(computation, groups, names) if groups else (computation, [])

    return with_fusions(module, fused)


def with_fusions(
    module: Module, fuse: Callable[[Computation, Names], tuple[Computation, list[Computation]]]
) -> Module:
    """Return the module with each computation that runs on arrays fused; the same one if none is.

    `fuse` returns a computation with fusions, and the computations of these.
    """
    names = Names(c.name for c in module.computations)
    runs = set(running(module))
    computations: list[Computation] = []
    entry = 0
    for position, computation in enumerate(module.computations):
        if computation.name in runs:
            computation, inner = fuse(computation, names)
            computations += inner
        if position == module.entry_position:
            entry = len(computations)
        computations.append(computation)
    if len(computations) == len(module.computations):
        return module
    return replace(module, computations=tuple(computations), entry_position=entry)


def running(module: Module) -> Iterator[str]:
    """Yield the computations that run on arrays: the entry, loops' and branches'."""

    def run_by(name: str) -> list[str]:
        runners = (
            op
            for op in module.computation[name].instructions
            if op.opcode in ("while", "conditional", "call")
        )
        return [inner for op in runners for inner in op.attributes.called]

    return reached([module.entry.name], run_by)


def _groups(
    computation: Computation, most_ops: int, ipus: Mapping[tuple[str, str], int]
) -> dict[int, list[int]]:
    """Return groups of two ops and more: position of the last op -> positions, descending."""
    users = computation.users
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    ops: dict[int, int] = {}  # without converts: they come in copies, of which one stays
    for position in range(len(computation.instructions) - 1, -1, -1):
        x = computation.instructions[position]
        if x.opcode not in FUSIBLE or not _is_plain(computation, x):
            continue
        user_groups = {group_of.get(user, -1) for user in users[position]}
        joined = max(user_groups, default=-1)
        if (
            position == computation.root
            or joined < 0
            or any(
                last >= 0
                and (
                    _sizes(x) != _sizes(computation.instructions[last])
                    or _ipu(computation, ipus, position) != _ipu(computation, ipus, last)
                )
                for last in user_groups
            )
            or sum(ops[last] for last in user_groups if last >= 0) >= most_ops
            or (len(user_groups) > 1 and not _may_merge(computation, groups, user_groups, position))
            or _would_wait(computation, groups[joined], position)
        ):
            joined = position
            groups[joined] = []
            ops[joined] = 0
            user_groups = {joined}
        for last in user_groups - {joined, -1}:
            moved = groups.pop(last)
            groups[joined] += moved
            ops[joined] += ops.pop(last)
            group_of.update(dict.fromkeys(moved, joined))
        groups[joined].append(position)
        ops[joined] += x.opcode != "convert"
        group_of[position] = joined
    return {
        last: sorted(members, reverse=True) for last, members in groups.items() if len(members) > 1
    }


def _may_merge(
    computation: Computation, groups: dict[int, list[int]], user_groups: set[int], position: int
) -> bool:
    """Whether groups and an op that they read may become one group, where the last of them is.

    Integers only: floats of several readers are what regions of rows are made of.
    """
    shape, last = computation.instructions[position].shape, max(user_groups)
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_integer:
        return False
    members = {position}.union(*(groups[x] for x in user_groups if x >= 0))
    if computation.root in members and computation.root != last:
        return False
    users = computation.users
    return all(user in members or user > last for each in members for user in users[each])


def _would_wait(computation: Computation, group: Sequence[int], position: int) -> bool:
    """Whether large values that an op uses up would lie with others made later, were it in a group.

    As the terms of a sum: gradients of a weight of several readers are added up as they come.
    """
    result = _stored_bytes(computation, position)
    if result < _LARGE_BYTES:
        return False
    made_later = {i for x in group for i in computation.instructions[x].operands if i > position}
    if all(_stored_bytes(computation, i) < _LARGE_BYTES for i in made_later.difference(group)):
        return False
    return _used_up_bytes(computation, position) >= result + _LARGE_BYTES


def _used_up_bytes(computation: Computation, position: int) -> int:
    """Return the bytes of what nothing but an op, and the ops that it fuses with, reads."""
    total, waiting = 0, [position]
    while waiting:
        at = waiting.pop()
        for i in set(computation.instructions[at].operands):
            x = computation.instructions[i]
            if computation.users[i] != (at,):
                continue
            if x.opcode in FUSIBLE and _is_plain(computation, x):
                waiting.append(i)
            else:
                total += _stored_bytes(computation, i)
    return total


def _stored_bytes(computation: Computation, position: int) -> int:
    """Return the bytes of a value that lies in memory while it is waited for, and only then."""
    x = computation.instructions[position]
    if x.opcode in _NEVER_STORED or not isinstance(x.shape, ArrayShape):
        return 0
    return x.shape.byte_count


_LARGE_BYTES = 1 << 25
"""From which on a value stored once more is worth its memory: a 27th of an IPU's. Assumed."""
_NEVER_STORED = frozenset({"parameter", "constant", "broadcast", "iota"})
"""Or always."""


def _ipu(computation: Computation, ipus: Mapping[tuple[str, str], int], position: int) -> int:
    return ipus.get((computation.name, computation.instructions[position].name), -1)


def _sizes(x: Instruction) -> tuple[int, ...]:
    return x.shape.dimensions if isinstance(x.shape, ArrayShape) else (-1,)


def _is_plain(computation: Computation, x: Instruction) -> bool:
    """Whether all operands have the result's sizes, and nothing else holds the op in place."""
    if not isinstance(x.shape, ArrayShape) or not x.shape.is_static or control_predecessors(x):
        return False
    sizes = x.shape.dimensions
    return all(_sizes(computation.instructions[i]) == sizes for i in x.operands)


def _fused(
    computation: Computation, groups: dict[int, list[int]], names: Names
) -> tuple[Computation, list[Computation]]:
    """Return the computation with fusions, and what the fusions compute."""
    members = {position for group in groups.values() for position in group}
    draft = Rewriting(computation)
    made, place = draft.made, draft.place
    inner: list[Computation] = []
    for position, x in enumerate(computation.instructions):
        if position in groups:
            place.append(len(made))
            group = sorted(groups[position])
            inside = {*group}
            results = [
                n
                for n in group
                if n == computation.root or any(u not in inside for u in computation.users[n])
            ]
            name = names.fresh(f"fused.{x.name}")
            body, operands = _body(computation, group, name, results)
            inner.append(body)
            attributes = Attributes({"kind": "kLoop", "calls": name}, (name,))
            new = tuple(place[i] for i in operands)
            if len(results) == 1:
                made.append(Instruction(x.name, "fusion", x.shape, new, attributes, x.metadata))
                continue
            shape = body.instructions[body.root].shape
            whole, at = draft.fresh_name(f"fused.{x.name}"), len(made)
            made.append(Instruction(whole, "fusion", shape, new, attributes, x.metadata))
            for number, n in enumerate(results):
                each = computation.instructions[n]
                place[n] = len(made)
                made.append(element_of(each.name, at, number, each.shape, each.metadata))
        elif position in members:
            place.append(len(made))
        else:
            draft.keep(x)
    return draft.finish(), inner


def _body(
    computation: Computation, members: list[int], name: str, results: list[int]
) -> tuple[Computation, list[int]]:
    instructions = computation.instructions
    inside = set(members)
    copied: dict[int, None] = {}
    outside: dict[int, None] = {}
    for member in members:
        for operand in instructions[member].operands:
            if operand in inside:
                continue
            if instructions[operand].opcode == "broadcast":
                source = instructions[operand].operands[0]
                target = copied if _is_number(instructions[source]) else outside
                target[source] = None
                copied[operand] = None
            elif _is_number(instructions[operand]):
                copied[operand] = None
            else:
                outside[operand] = None
    names = Names(instructions[i].name for i in (*members, *copied))
    place: dict[int, int] = {}
    body: list[Instruction] = []
    for number, position in enumerate(outside):
        place[position] = number
        shape = instructions[position].shape
        parameter = names.fresh(f"param.{number}")
        body.append(Instruction(parameter, "parameter", shape, parameter_number=number))
    same: dict[tuple[str, tuple[int, ...], Shape], int] = {}
    for position in (*sorted(copied), *members):
        x = instructions[position]
        operands = tuple(place[i] for i in x.operands)
        if x.opcode == "convert" or x.opcode in _ONE_SLOT:
            # Each reader may have come with its own.
            place[position] = same.setdefault((x.opcode, operands, x.shape), len(body))
            if place[position] < len(body):
                continue
        place[position] = len(body)
        body.append(with_operands(x, operands))
    if len(results) > 1:
        shape = TupleShape(tuple(instructions[n].shape for n in results))
        own = tuple(place[n] for n in results)
        body.append(Instruction(names.fresh("results"), "tuple", shape, own))
        root = len(body) - 1
    else:
        root = place[members[-1]]
    return Computation(name, tuple(body), root), list(outside)


def _is_number(x: Instruction) -> bool:
    return x.opcode == "constant" and isinstance(x.shape, ArrayShape) and not x.shape.dimensions


def copied_to_readers(module: Module, plan: Plan) -> tuple[Module, Plan]:
    """Return the module in which readers compute for themselves what costs less than keeping it.

    That is what widens f16, and at most `_MOST_COPIED` sums and products with what repeats.
    Copies become one again in one fused expression.
    """
    return rewritten_in_place(module, plan, _rules)


def _rules(computation: Computation) -> dict[str, Rule]:
    def rule(draft: Draft, x: Instruction) -> Instruction | None:
        return _copied(draft, computation, x)

    return dict.fromkeys((*FUSIBLE, "reduce"), rule)


_MOST_COPIED = 3
"""Ops in all copies but one: stored and loaded, a value takes a store, a load, and a loop."""
_ONE_SLOT = frozenset({"add", "subtract", "multiply", "negate"})
"""Floats alone, a vector in a slot."""


def _copied(draft: Draft, computation: Computation, x: Instruction) -> Instruction | None:
    """Return an op that reads copies of operands that are not to be kept, if it has any."""
    copies: dict[int, int] = {}
    for old, new in zip(computation[x.name].operands, x.operands, strict=True):
        users = computation.users[old]
        if new in copies or len(users) < 2:
            continue
        chain = _chain(draft, new)
        if chain is None:
            continue
        ops = sum(draft.made[at].opcode != "convert" for at in chain)
        if ops and ((len(users) - 1) * ops > _MOST_COPIED or not _fuse(computation, old, users)):
            chain = chain[:1] if _widens(draft, new) else []
        if chain:
            copies[new] = _again(draft, chain)
    if not copies:
        return None
    return with_operands(x, tuple(copies.get(i, i) for i in x.operands))


def _fuse(computation: Computation, at: int, users: Sequence[int]) -> bool:
    """Whether all users are ops of one region of the value's sizes, so that nobody keeps it."""
    sizes = _sizes(computation.instructions[at])
    for user in users:
        y = computation.instructions[user]
        if y.opcode != "reduce" and (y.opcode not in FUSIBLE or _sizes(y) != sizes):
            return False
    return at != computation.root


def _chain(draft: Draft, at: int) -> list[int] | None:
    """Return the ops to copy for a value, the last first, up to what is at least as narrow."""
    chain: list[int] = []
    width = _bits(draft.made[at])
    while True:
        x = draft.made[at]
        if not _widens(draft, at):
            source = static(x.shape)
            if source is None or not source.element_type.is_float or x.opcode not in _ONE_SLOT:
                break
            if control_predecessors(x):
                break
        chain.append(at)
        full = [i for i in {*x.operands} if draft.made[i].opcode not in ("broadcast", "constant")]
        if len(full) != 1:
            return None
        (at,) = full
    if not chain or _bits(draft.made[at]) > width:
        return None
    return chain


def _bits(x: Instruction) -> int:
    return x.shape.element_type.bits if isinstance(x.shape, ArrayShape) else 1 << 30


def _again(draft: Draft, chain: Sequence[int]) -> int:
    """Append copies of ops, each of which reads the one behind it."""
    before = after = -1
    for at in reversed(chain):
        x = draft.made[at]
        operands = tuple(after if i == before else i for i in x.operands)
        before, after = at, draft.add(x, x.opcode, x.shape, operands, x.attributes)
    return after


def _widens(draft: Draft, at: int) -> bool:
    x = draft.made[at]
    if x.opcode != "convert" or control_predecessors(x):
        return False
    after, before = static(x.shape), static(draft.shape(x.operands[0]))
    if after is None or before is None or not after.rank:
        return False
    return after.element_type is F32 and before.element_type.name == "f16"


@register
@dataclass(frozen=True, slots=True)
class FuseElementwise(Pass):
    """Makes one op of elementwise ops whose results only each other read."""

    name: ClassVar[str] = "fuse-elementwise"
    requires: ClassVar[Facts] = frozenset({FLAT_CALLS})
    breaks: ClassVar[Facts] = frozenset({FLAT_CALLS, NO_DEAD_CODE})
    most_ops: int = 64
    """Ops of one group at most: its code lies on every tile that runs it."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with fusions."""
        module, plan = copied_to_readers(module, plan)
        return elementwise_fused(module, self.most_ops, plan.ipus), plan
