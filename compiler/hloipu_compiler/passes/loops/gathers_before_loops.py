"""Moves collectives before the loops that do not change what they move.

    body:  h' = h @ all-gather(w)      ->   before: v = all-gather(w)
                                            body:   h' = h @ v

The gathered array is whole then on every device for as long as the loop runs, as in XLA
(openxla/xla: xla/service/while_loop_invariant_code_motion.h).
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import call_counts
from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.ops import COLLECTIVES, Trait, with_trait
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_each, with_operands
from hloipu_compiler.passes.loops.loop_state import elements_read, is_divisible, unused
from hloipu_runtime.reached import reached

_GTE = "get-tuple-element"
_MOVES = with_trait(Trait.DATA_MOVEMENT) & frozenset("reshape transpose copy".split()) | {"convert"}
"""What may stand between a loop's state and a collective; they are done again before the loop."""

Moved = Mapping[int, int]
"""Positions of collectives in a body, and the element of the loop's new state that each becomes."""


def gathers_before_loops(module: Module) -> Module:
    """Return a module without collectives in loops that may come before; the same without any.

    Computations that several ops run are left alone.
    """
    if not any(x.opcode == "while" for c in module.computations for x in c.instructions):
        return module
    sites = call_counts(module)
    now = dict(module.computation)
    for name in [c.name for c in module.computations]:  # callees before callers
        for at in reversed(range(len(now[name].instructions))):  # what is before a loop stays there
            x = now[name].instructions[at]
            if x.opcode == "while" and all(sites[called] == 1 for called in x.attributes.called):
                now |= _visited(module, now, name, at)
    return with_each(module, lambda c: now[c.name])


def _visited(
    module: Module, now: Mapping[str, Computation], name: str, at: int
) -> dict[str, Computation]:
    """Return the computations that a loop without its early collectives changes."""
    caller = now[name]
    x = caller.instructions[at]
    body, condition = (now[x.attributes.text(key)] for key in ("body", "condition"))
    root, given = body.instructions[body.root], caller.instructions[x.operands[0]]
    parameters = [c.instructions[c.parameters[0]] for c in (body, condition)]
    if root.opcode != "tuple" or given.opcode != "tuple" or body.users[body.root]:
        return {}
    if not all(map(is_divisible, (x, root, given, *parameters))):
        return {}
    read = [elements_read(c, c.parameters[0]) for c in (body, condition)]
    if elements_read(caller, at) is None or None in read:
        return {}
    same = unchanged(body)
    needed = _needed(body, same)
    last = [i for i in sorted(same & needed) if body.instructions[i].opcode in COLLECTIVES]
    trips = trip_count(module, caller, x) if last else None
    if not last or (trips is not None and trips < 2):
        return {}
    moved = {i: len(root.operands) + n for n, i in enumerate(last)}
    shapes = [body.instructions[i].shape for i in last]
    if any("control-predecessors" in o.attributes for o in (*body.instructions, x)):
        return {}
    return {
        body.name: _without(body, moved, needed),
        condition.name: _with_more(condition, shapes),
        name: _with_early(caller, at, body, last),
    }


def turns_of(module: Module) -> dict[str, tuple[frozenset[int], int]]:
    """Return of loops' bodies what they do not change, and how often they run; 2: unknown.

    What a collective makes of that, `gathers_before_loops` has made once.
    """
    turns = {}
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode == "while":
                body = module.computation[x.attributes.text("body")]
                if body.instructions[body.root].opcode == "tuple":
                    count = trip_count(module, computation, x)
                    turns[body.name] = unchanged(body), 2 if count is None else count
    return turns


def unchanged(body: Computation) -> frozenset[int]:
    """Return the positions in a loop's body of what it does not change, up to collectives."""
    root, parameter = body.instructions[body.root], body.parameters[0]
    same: set[int] = set()
    for i, x in enumerate(body.instructions):
        if x.opcode == _GTE and x.operands[0] == parameter:
            is_same = root.operands[x.attributes.integer("index")] == i
        else:
            goes_early = x.opcode in _MOVES or x.opcode in COLLECTIVES or is_identity(x)
            is_same = goes_early and bool(x.operands) and same.issuperset(x.operands)
        if is_same:
            same.add(i)
    return frozenset(same)


def _needed(body: Computation, same: Set[int]) -> frozenset[int]:
    """Return the positions of a body that stay when its unchanged collectives have come before.

    Those of such collectives whose values are read there are among them.
    """
    needed: set[int] = set()
    for i in range(len(body.instructions) - 1, -1, -1):
        x = body.instructions[i]
        is_read = any(
            u in needed and not (u in same and body.instructions[u].opcode in COLLECTIVES)
            for u in body.users[i]
        )
        if i not in same or x.opcode == _GTE or is_read:
            needed.add(i)
    return frozenset(needed)


def _with_more(computation: Computation, shapes: Sequence[Shape]) -> Computation:
    """Return a computation whose parameter, a tuple, has more elements."""
    at = computation.parameters[0]
    old = computation.instructions[at]
    assert isinstance(old.shape, TupleShape)
    whole = old._replace(shape=TupleShape((*old.shape.elements, *shapes)))
    instructions = (*computation.instructions[:at], whole, *computation.instructions[at + 1 :])
    return replace(computation, instructions=instructions)


def _without(body: Computation, moved: Moved, needed: Set[int]) -> Computation:
    """Return a body that reads what collectives made from its state."""
    body = _with_more(body, [body.instructions[i].shape for i in moved])
    used = {x.name for x in body.instructions}
    place: dict[int, int] = {}
    instructions: list[Instruction] = []
    for i, x in enumerate(body.instructions):
        if i not in needed:
            continue
        place[i] = len(instructions)
        if i in moved:
            instructions.append(
                element_of(unused(x.name, used), place[body.parameters[0]], moved[i], x.shape)
            )
            continue
        x = with_operands(x, tuple(place[o] for o in x.operands))
        if i == body.root:
            more = [place[o] for o in moved]
            shape = TupleShape(tuple(instructions[o].shape for o in (*x.operands, *more)))
            x = x._replace(operands=(*x.operands, *more), shape=shape)
        instructions.append(x)
    return replace(body, instructions=tuple(instructions), root=place[body.root])


def _with_early(
    caller: Computation, at: int, body: Computation, last: Sequence[int]
) -> Computation:
    """Return the computation of a loop with collectives of its body before it."""
    names = Names(x.name for x in caller.instructions)
    loop, start = caller.instructions[at], caller.instructions[at].operands[0]
    given = caller.instructions[start]
    instructions = list(caller.instructions[:at])
    place: dict[int, int] = {}

    ops = body.instructions
    for i in sorted(reached(last, lambda i: () if ops[i].opcode == _GTE else ops[i].operands)):
        x = body.instructions[i]
        if x.opcode == _GTE:
            place[i] = given.operands[x.attributes.integer("index")]
            continue
        copied = with_operands(x, tuple(place[o] for o in x.operands))
        instructions.append(copied._replace(name=names.fresh(x.name)))
        place[i] = len(instructions) - 1
    early = [place[i] for i in last]
    operands = (*given.operands, *early)
    shape = TupleShape(tuple(instructions[o].shape for o in operands))
    instructions.append(
        given._replace(name=names.fresh(given.name), operands=operands, shape=shape)
    )
    instructions.append(loop._replace(operands=(len(instructions) - 1,), shape=shape))
    more = len(instructions) - 1 - at
    for x in caller.instructions[at + 1 :]:
        instructions.append(with_operands(x, tuple(o + more if o >= at else o for o in x.operands)))
    root = caller.root + more if caller.root >= at else caller.root
    return replace(caller, instructions=tuple(instructions), root=root)
