"""Passes on loops: what they carry without changing it, constants handed in, how often they run.

A part of a loop's state that the body hands on unchanged is, after the loop, what it was before.
Where that is a constant, the body and the condition can have it of their own, and so can a branch:
then it can be folded there. `eliminate-dead-code` drops what nobody reads any more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.live_bytes import unchanged_elements
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, with_each, with_operands
from hloipu_compiler.plan.plan import LoopKey, Plan
from hloipu_runtime.frozen import dataclass

Template = tuple[Instruction, ...]
"""A constant, and perhaps the broadcast of it, each the operand of the next."""
_GTE = "get-tuple-element"


def loops_simplified(module: Module) -> Module:
    """Return the module with constants inside of loops and branches; the same one if none move.

    Computations that several ops run are left alone.
    """
    module = bitcasts_expanded(module)
    sites: dict[str, int] = {}
    runs = False
    for c in module.computations:
        for op in c.instructions:
            if op.attributes.called:
                runs = runs or op.opcode in ("while", "conditional")
                for name in op.attributes.called:
                    sites[name] = sites.get(name, 0) + 1
    if not runs:
        return module
    now = dict(module.computation)
    for name in [c.name for c in reversed(module.computations)]:
        _visit(module, now, sites, name)
    return with_each(module, lambda c: now[c.name])


def _visit(
    module: Module, now: dict[str, Computation], sites: Mapping[str, int], name: str
) -> None:
    """Push constants from one computation down, and read unchanged state before its loops."""
    computation = now[name]
    unchanged: dict[int, dict[int, int]] = {}
    for at, op in enumerate(computation.instructions):
        if op.opcode not in ("while", "conditional"):
            continue
        if any(sites[called] > 1 for called in op.attributes.called):
            continue
        if op.opcode == "while":
            start_by_element = _unchanged_state(computation, op, now[op.attributes.text("body")])
            if start_by_element:
                unchanged[at] = start_by_element
                templates = _templates(computation, start_by_element)
                for key in ("body", "condition"):
                    inner = now[op.attributes.text(key)]
                    now[inner.name] = _with_constants(module, inner, templates)
        else:
            for called, operand in zip(op.attributes.called, op.operands[1:], strict=True):
                now[called] = _branch(module, computation, operand, now[called])
    if unchanged:
        now[name] = _reading_before(computation, unchanged)


def _unchanged_state(
    caller: Computation, loop: Instruction, body: Computation
) -> dict[int, int] | None:
    """Return, for each element that the body hands on as it is, where its start stands."""
    start, root = caller.instructions[loop.operands[0]], body.instructions[body.root]
    if start.opcode != "tuple" or root.opcode != "tuple" or not isinstance(loop.shape, TupleShape):
        return None
    if loop.shape.has_buffer or "sharding" in loop.attributes:
        return None
    return {i: start.operands[i] for i in sorted(unchanged_elements(body))}


def _templates(caller: Computation, starts: Mapping[int, int]) -> dict[int, Template]:
    """Return the elements that start from a constant, as instructions to copy."""
    pairs = ((i, _template(caller, at)) for i, at in starts.items())
    return {i: template for i, template in pairs if template}


def _template(caller: Computation, at: int) -> Template:
    op = caller.instructions[at]
    if op.opcode == "constant" and not isinstance(op.shape, TupleShape):
        return (op,)
    if op.opcode == "broadcast":
        source = caller.instructions[op.operands[0]]
        if source.opcode == "constant":
            return (source, op)
    return ()


def _with_constants(
    module: Module, inner: Computation, templates: Mapping[int, Template]
) -> Computation:
    """Return a computation that has elements of its parameter's tuple as constants of its own.

    The element of the root that hands one of them on stays, so that the state stays as it is.
    """
    parameter = inner.parameters[0]
    from hloipu_compiler.passes.loops.loop_state import elements_read

    read = elements_read(inner, parameter)
    if not templates or read is None or read.isdisjoint(templates):
        return inner
    draft = Draft(module, inner)
    own: dict[int, int] = {}
    changed = False
    for at, op in enumerate(inner.instructions):
        if op.opcode == _GTE and op.operands[0] == parameter:
            index = op.attributes.integer("index")
            if index in templates and _is_used(inner, at):
                changed = True
                if index not in own:
                    own[index] = _copied(draft, templates[index])
                draft.place.append(own[index])
                continue
        draft.keep(op)
    if not changed:
        return inner
    return _handing_on(draft, inner, parameter, frozenset(own))


def _is_used(inner: Computation, at: int) -> bool:
    """Whether an element is read by anything but a root that hands it on."""
    hands_on = inner.instructions[inner.root].opcode == "tuple"
    return any(user != inner.root or not hands_on for user in inner.users[at])


def _handing_on(
    draft: Draft, inner: Computation, parameter: int, indices: frozenset[int]
) -> Computation:
    """Let the root's tuple read from the parameter what it read from there."""
    new = draft.finish()
    root = inner.instructions[inner.root]
    if root.opcode != "tuple":
        return new
    instructions = list(new.instructions)
    last = instructions.pop(new.root) if new.root == len(instructions) - 1 else None
    if last is None:
        return new
    operands = list(last.operands)
    for i, operand in enumerate(root.operands):
        op = inner.instructions[operand]
        if op.opcode != _GTE or op.operands[0] != parameter:
            continue
        index = op.attributes.integer("index")
        if index in indices:
            operands[i] = len(instructions)
            name, state = draft.fresh_name(op.name), draft.place[parameter]
            instructions.append(element_of(name, state, index, op.shape, op.metadata))
    instructions.append(with_operands(last, tuple(operands)))
    return replace(new, instructions=tuple(instructions), root=len(instructions) - 1)


def _copied(draft: Draft, template: Template) -> int:
    at = -1
    for op in template:
        name = draft.fresh_name(op.name)
        at = draft.append(op._replace(name=name, operands=(at,) if op.operands else ()))
    return at


def _branch(module: Module, caller: Computation, operand: int, branch: Computation) -> Computation:
    given = caller.instructions[operand]
    if given.opcode == "tuple":
        templates = _templates(caller, dict(enumerate(given.operands)))
        return _with_constants(module, branch, templates)
    template = _template(caller, operand)
    parameter = branch.parameters[0]
    if not template or not branch.users[parameter]:
        return branch
    draft = Draft(module, branch)
    own = _copied(draft, template)
    for at, op in enumerate(branch.instructions):
        if at == parameter:
            draft.append(op)
            draft.place.append(own)
        else:
            draft.keep(op)
    return draft.finish()


def _reading_before(
    computation: Computation, unchanged: Mapping[int, Mapping[int, int]]
) -> Computation:
    """Return a caller that reads what its loops do not change where it stood before them."""
    instructions = list(computation.instructions)
    forward: dict[int, int] = {}
    for at, op in enumerate(instructions):
        if op.opcode == _GTE and op.operands[0] in unchanged:
            start = unchanged[op.operands[0]].get(op.attributes.integer("index"))
            if start is not None:
                forward[at] = forward.get(start, start)
    changed = False
    for at, op in enumerate(instructions):
        if not forward.keys().isdisjoint(op.operands):
            instructions[at] = with_operands(op, tuple([forward.get(i, i) for i in op.operands]))
            changed = True
    root = forward.get(computation.root, computation.root)
    if not changed and root == computation.root:
        return computation
    return replace(computation, instructions=tuple(instructions), root=root)


@register
@dataclass(frozen=True, slots=True)
class SimplifyLoops(Pass):
    """Gives loops and branches their constants, and reads what loops leave alone before them."""

    name: ClassVar[str] = "simplify-loops"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with simpler loops."""
        return loops_simplified(module), plan


MOST_RUN_TRIPS = 128


def recognised_loops(module: Module, most_run_trips: int = MOST_RUN_TRIPS) -> dict[LoopKey, int]:
    """Return the trip counts of all loops that the entry reaches and whose count is known.

    The rules of `analysis.trip_count` first; where they do not fit and the end of the loop depends
    on constants alone, the part of the loop that decides it is simply run.
    """
    if not any(op.opcode == "while" for c in module.computations for op in c.instructions):
        return {}
    from hloipu_compiler.analysis.trip_count import counted_loop
    from hloipu_compiler.passes.loops.counted_by_running import LoopRunner

    trips_by_loop: dict[LoopKey, int] = {}
    runner = LoopRunner(module, most_run_trips)
    for computation in callees_first(module, only_reachable=True):
        for at, op in enumerate(computation.instructions):
            if op.opcode != "while":
                continue
            loop = counted_loop(module, computation, op)
            trips = loop.trips if loop is not None else None
            if trips is None and most_run_trips > 0:
                trips = runner.trips(computation, at)
            if trips is not None:
                trips_by_loop[computation.name, op.name] = trips
    return trips_by_loop


@register
@dataclass(frozen=True, slots=True)
class RecogniseLoops(Pass):
    """Notes in the plan how often each loop runs, where the program tells."""

    name: ClassVar[str] = "recognise-loops"
    establishes: ClassVar[Facts] = frozenset({TRIP_COUNTS})

    max_run_trips: int = MOST_RUN_TRIPS

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module as it is, and the plan with the trip counts."""
        return module, plan.with_trip_counts(recognised_loops(module, self.max_run_trips))


@register
@dataclass(frozen=True, slots=True)
class SumAfterLoops(Pass):
    """Adds up over devices after a loop what the loop adds up or stacks."""

    name: ClassVar[str] = "sum-after-loops"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with sums after its loops."""
        if not any(op.opcode == "all-reduce" for c in module.computations for op in c.instructions):
            return module, plan
        from hloipu_compiler.passes.loops.sum_after_loops import sums_after_loops

        return sums_after_loops(module), plan
