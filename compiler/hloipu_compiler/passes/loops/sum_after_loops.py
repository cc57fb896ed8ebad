"""Moves sums over devices behind the loops that add them up, or that stack them.

    body:  total' = total + all-reduce(x)      ->   total' = total + x
    after: total                               ->   all-reduce(total)

So a loop over micro-batches in the text sums its gradients once, as in XLA (openxla/xla:
xla/service/while_loop_all_reduce_code_motion.h).
Where a loop over layers writes each layer's gradient into an array of zeros, the sum of that
array is as good, and takes one meeting; a loop around it may then add it up before.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import call_counts
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.algebra.arithmetic import filled
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft, with_each, with_operands
from hloipu_compiler.passes.loops.device_sums import (
    DeviceSum,
    MovedSums,
    Sums,
    collective,
    device_sum,
    moved_operand,
)
from hloipu_compiler.passes.loops.loop_state import elements_read, is_divisible
from hloipu_runtime.element_types import ElementType

_GTE = "get-tuple-element"
_SAME_EVERYWHERE = with_trait(Trait.ELEMENTWISE) | {"convert", "reshape", "copy"}
_REPEATING = frozenset("broadcast reshape copy".split())
_MOST_FOLLOWED = 64
"""Ops behind the index of a stack that are followed; JAX writes five."""


class _HeldSum(NamedTuple):
    """An element of a loop's state that adds up, or stacks, sums over devices."""

    value: DeviceSum
    begins_at_zero: bool


Held = Mapping[int, _HeldSum]
"""Elements of a loop's state, by number."""


def sums_after_loops(module: Module) -> Module:
    """Return a module without sums in loops that may come after them; the same one without any.

    Computations that several ops run are left alone.
    """
    sites = call_counts(module)
    sums, now = Sums(module), dict(module.computation)
    for name in [c.name for c in module.computations]:  # callees before callers
        loops: dict[int, tuple[Computation, Held]] = {}
        for at, op in enumerate(now[name].instructions):
            is_own = op.opcode == "while" and all(
                sites[called] == 1 for called in op.attributes.called
            )
            late_sums = _held_sums(now, name, at, sums) if is_own else {}
            if late_sums:
                body = now[op.attributes.text("body")]
                summed = {each.value.ops[0]: each.value for each in late_sums.values()}
                now[body.name] = MovedSums(body, sums, summed, comes_late=False).new
                loops[at] = body, late_sums
        if loops:
            now[name] = _After(module, now[name], sums, loops).new
    changed = with_each(module, lambda c: now[c.name])
    return module if changed is module else sums.within(changed)


def _held_sums(
    now: Mapping[str, Computation], name: str, at: int, sums: Sums
) -> dict[int, _HeldSum]:
    """Return the elements of a loop's state whose sums over devices may come after it."""
    computation = now[name]
    op = computation.instructions[at]
    body, condition = (now[op.attributes.text(key)] for key in ("body", "condition"))
    root, given = body.instructions[body.root], computation.instructions[op.operands[0]]
    ending = elements_read(condition, condition.parameters[0])
    if ending is None or elements_read(computation, at) is None or not is_divisible(op):
        return {}
    if root.opcode != "tuple" or body.users[body.root] or given.opcode != "tuple":
        return {}
    if elements_read(body, body.parameters[0]) is None or not is_divisible(root):
        return {}
    late_sums: dict[int, _HeldSum] = {}
    for number, position in enumerate(root.operands):
        value = None if number in ending else _added(body, number, position, sums)
        if value is None:
            continue
        zero, op = _splat(computation, given.operands[number]) == 0, body.instructions[position]
        is_stack = op.opcode == "dynamic-update-slice"
        if not is_stack or (zero and _same_everywhere(body, op.operands[2:], computation, given)):
            late_sums[number] = _HeldSum(value, zero)
    return late_sums


def _added(body: Computation, number: int, position: int, sums: Sums) -> DeviceSum | None:
    """Return the sum over devices that goes into an element of a loop's state, and nowhere else.

    `position`: of the element's next value.
    """
    instruction, old = body.instructions[position], body.instructions
    own = [
        i for i in body.users[body.parameters[0]] if old[i].attributes.integer("index") == number
    ]
    if instruction.opcode not in ("add", "dynamic-update-slice") or body.users[position] != (
        body.root,
    ):
        return None
    if old[body.root].operands.count(position) != 1:
        return None
    if len(own) != 1 or body.users[own[0]] != (position,):
        return None
    if instruction.opcode == "add":
        rest = [i for i in instruction.operands if i != own[0]]
    elif instruction.operands[0] == own[0]:
        rest = [instruction.operands[1]]
    else:
        return None
    if len(rest) != 1 or body.users[rest[0]] != (position,):
        return None

    def followed(op: Instruction) -> int | None:
        moved = moved_operand(op, body)
        if moved is not None or op.opcode not in ("multiply", "divide"):
            return moved
        a, b = op.operands
        if _splat(body, b) is not None:
            return a
        return b if op.opcode == "multiply" and _splat(body, a) is not None else None

    value = device_sum(body, rest[0], ("all-reduce",), followed, sums.adds_up)
    return value if value is not None and value.is_alone(body) else None


def _same_everywhere(
    body: Computation, positions: Iterable[int], around: Computation, given: Instruction
) -> bool:
    """Whether all devices have the same numbers in a loop's body: of constants and counters alone.

    `around`: the computation that has the loop; `given`: what it begins with.
    """
    waiting, seen = [(body, i) for i in positions], set[tuple[str, int]]()
    root, parameter = body.instructions[body.root], body.parameters[0]
    while waiting:
        computation, position = waiting.pop()
        if (computation.name, position) in seen:
            continue
        seen.add((computation.name, position))
        op = computation.instructions[position]
        if (
            len(seen) > _MOST_FOLLOWED
            or not isinstance(op.shape, ArrayShape)
            or op.shape.dimensions
        ):
            return False
        if computation is body and op.opcode == _GTE and op.operands[0] == parameter:
            number = op.attributes.integer("index")
            waiting += [(body, root.operands[number]), (around, given.operands[number])]
        elif op.opcode in _SAME_EVERYWHERE:
            waiting += [(computation, i) for i in op.operands]
        elif op.opcode != "constant":
            return False
    return True


def _splat(computation: Computation, position: int) -> float | None:
    """Return the number that all elements of a value are, where that is a constant."""
    op = computation.instructions[position]
    while op.opcode in _REPEATING:
        op = computation.instructions[op.operands[0]]
    value = scalar_constant(op)
    return None if value is None or value.dtype.kind != "f" else float(value.reshape(()))


class _After:
    """A computation in the making whose loops have sums behind them."""

    def __init__(
        self,
        module: Module,
        old: Computation,
        sums: Sums,
        loops: Mapping[int, tuple[Computation, Held]],
    ) -> None:
        self.draft, self.sums = Draft(module, old), sums
        draft, place = self.draft, self.draft.place
        totals: dict[tuple[int, int], int] = {}
        for position, op in enumerate(old.instructions):
            if op.opcode == _GTE and (op.operands[0], op.attributes.integer("index")) in totals:
                place.append(totals[op.operands[0], op.attributes.integer("index")])
                continue
            moved = with_operands(op, tuple(place[i] for i in op.operands))
            if position not in loops:
                place.append(draft.append(moved))
                continue
            body, late_sums = loops[position]
            given = draft.made[moved.operands[0]]
            begin = self._from_zero(given, moved.operands[0], late_sums)
            at = draft.append(moved._replace(operands=(begin,)))
            place.append(at)
            for number, total in self._summed(at, body, late_sums).items():
                if not late_sums[number].begins_at_zero:
                    both = (given.operands[number], total)
                    total = draft.add(op, "add", draft.shape(total), both)
                totals[position, number] = total
        self.new = draft.finish()

    def _from_zero(self, given: Instruction, at: int, late_sums: Held) -> int:
        """Return what a loop begins with, where sums are added to what they began with later."""
        draft, operands = self.draft, list(given.operands)
        for number, each in late_sums.items():
            shape = draft.shape(operands[number])
            if not each.begins_at_zero and isinstance(shape, ArrayShape):
                operands[number] = filled(draft, given, shape, 0)
        if tuple(operands) == given.operands:
            return at
        return draft.add(given, "tuple", given.shape, operands)

    def _summed(self, loop: int, body: Computation, late_sums: Held) -> dict[int, int]:
        """Write the sums of what a loop hands out; return where each element's is."""
        draft = self.draft
        groups: dict[tuple[int, ElementType], list[int]] = {}
        for number, each in late_sums.items():
            groups.setdefault((each.value.meeting, each.value.element_type), []).append(number)
        position_by_element: dict[int, int] = {}
        for (meeting, kind), numbers in groups.items():
            op, like, state = body.instructions[meeting], draft.made[loop], draft.shape(loop)
            elements = state.elements if isinstance(state, TupleShape) else ()
            shapes = [s for n in numbers if isinstance(s := elements[n], ArrayShape)]
            parts = [draft.element(like, loop, n) for n in numbers]
            attributes, name = self.sums.attributes(op, kind), draft.fresh_name(op.name)
            at = draft.append(collective(op, name, parts, shapes, attributes))
            position_by_element[numbers[0]] = at
            if len(numbers) > 1:
                for n, number in enumerate(numbers):
                    position_by_element[number] = draft.element(op, at, n)
        return position_by_element
