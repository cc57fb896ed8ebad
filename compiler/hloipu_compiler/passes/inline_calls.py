"""Inlines calls, fusions and asynchronous wrappers; gives each loop its own computations."""

from collections.abc import Iterable
from dataclasses import field, replace
from typing import ClassVar

from hloipu_compiler.analysis.call_graph import with_reached
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.attribute_edits import CONTROL, renamed, without
from hloipu_compiler.passes.framework.call_forms import (
    FOLLOWS,
    INLINED,
    MOST_INSTRUCTIONS,
    RUN_BY_OPERANDS,
    STARTS,
    check_inlined_size,
    wrapper_positions,
)
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import (
    FLAT_CALLS,
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass


def inlined(module: Module, most_instructions: int = MOST_INSTRUCTIONS) -> Module:
    """Return the module without calls, and with nothing that the entry does not reach.

    Raises LimitError (E5020) where that takes more instructions than allowed.
    """
    module = bitcasts_expanded(module)
    check_inlined_size(module, most_instructions)
    flattening = _Flattening(module)
    flat = flattening.run()
    if len(flat) == len(module.computations) and all(
        new is old for new, old in zip(flat, module.computations, strict=True)
    ):
        return module
    return with_reached(module, flat, module.entry.name)


@dataclass(slots=True)
class _Frame:
    """One call being written out: how far, and where the callee's values stand in the caller."""

    computation: Computation
    arguments: tuple[int, ...] = ()
    caller: Instruction | None = None
    next: int = 0
    place: list[int] = field(default_factory=list)
    starts: frozenset[int] = frozenset()
    """Positions of asynchronous starts, updates and dones that are written out."""
    renamed: dict[str, str] = field(default_factory=dict)
    """For asynchronous ops that stay: the computation's name, for their updates and dones."""


class _Flattening:
    """Writes out one computation after another, from the entry down."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.computation_names = Names(c.name for c in module.computations)
        applied = {
            name
            for c in module.computations
            for op in c.instructions
            if op.attributes.called
            and op.opcode not in INLINED
            and op.opcode not in RUN_BY_OPERANDS
            for name in op.attributes.called
            if op.opcode not in FOLLOWS
        }
        self.shared = applied
        """Computations that are applied keep their names, and every op that applies them."""
        self.owned: set[str] = set()
        """Computations that a loop or branch has taken for its own."""
        self.waiting: list[tuple[str, str]] = [(module.entry.name, module.entry.name)]
        self.queued: set[str] = {module.entry.name}
        self.plain: dict[str, bool] = {}

    def run(self) -> list[Computation]:
        """Return every computation that is still needed, those unchanged as they were."""
        computation_by_name: dict[str, Computation] = {}
        while self.waiting:
            old, new = self.waiting.pop()
            computation_by_name[new] = self._written_out(self.module.computation[old], new)
        order = [c.name for c in self.module.computations if c.name in computation_by_name]
        known = set(order)
        order += [name for name in computation_by_name if name not in known]
        return [computation_by_name[name] for name in order]

    def _apply(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.queued:
                self.queued.add(name)
                self.waiting.append((name, name))

    def _own(self, name: str) -> str:
        """Return the name of a copy that nobody else runs: the original where it is still free."""
        new = name
        if name in self.owned or name in self.shared:
            new = self.computation_names.fresh(name)
        self.owned.add(name)
        self.waiting.append((name, new))
        return new

    def _called(self, op: Instruction, frame: _Frame) -> Instruction:
        if op.opcode in RUN_BY_OPERANDS:
            names: dict[str, str] = {}
            attributes = op.attributes
            if len(set(attributes.called)) < len(attributes.called):
                return op._replace(attributes=self._owned_one_by_one(attributes))
            for name in attributes.called:
                names[name] = self._own(name)
            if op.opcode == STARTS:
                frame.renamed.update(names)
            return op._replace(attributes=renamed(attributes, names))
        if op.opcode in FOLLOWS:
            return op._replace(attributes=renamed(op.attributes, frame.renamed))
        self._apply(op.attributes.called)
        return op

    def _owned_one_by_one(self, attributes: Attributes) -> Attributes:
        """Return a branch's attributes where two of its branches are one computation."""
        new = [self._own(name) for name in attributes.called]
        left = iter(new)
        values = dict(attributes.items())
        for key in ("condition", "body", "true_computation", "false_computation"):
            if key in values:
                values[key] = next(left)
        if "branch_computations" in values:
            values["branch_computations"] = tuple(left)
        return Attributes(values, tuple(new))

    def _is_plain(self, computation: Computation) -> bool:
        known = self.plain.get(computation.name)
        if known is None:
            known = not any(op.attributes.called for op in computation.instructions)
            self.plain[computation.name] = known
        return known

    def _written_out(self, root: Computation, name: str) -> Computation:
        if self._is_plain(root):
            return root if name == root.name else replace(root, name=name)
        written: list[Instruction] = []
        names = Names(op.name for op in root.instructions)
        controlled: list[tuple[int, _Frame]] = []
        base = _Frame(root, starts=wrapper_positions(self.module, root))
        frames = [base]
        while frames:
            frame = frames[-1]
            entered = self._advance(frame, written, names if len(frames) > 1 else None, controlled)
            if entered is not None:
                frames.append(entered)
                continue
            frames.pop()
            if frames:
                frames[-1].place.append(frame.place[frame.computation.root])
        for at, frame in controlled:
            written[at] = _with_moved_control(written, at, frame)
        place = base.place[root.root]
        if name == root.name and place == root.root and _same(written, root.instructions):
            return root
        return Computation(name, tuple(written), place, root.execution_thread)

    def _advance(
        self,
        frame: _Frame,
        written: list[Instruction],
        names: Names | None,
        controlled: list[tuple[int, _Frame]],
    ) -> _Frame | None:
        """Copy a frame's instructions up to the next call; return the frame of that, if any."""
        instructions, place = frame.computation.instructions, frame.place
        for at in range(frame.next, len(instructions)):
            op = instructions[at]
            if names is not None and op.parameter_number >= 0:
                place.append(frame.arguments[op.parameter_number])
                continue
            operands = tuple([place[i] for i in op.operands]) if op.operands else ()
            attributes = op.attributes
            if attributes.called or at in frame.starts:
                if op.opcode in INLINED or (op.opcode == STARTS and at in frame.starts):
                    frame.next = at + 1
                    callee = self.module.computation[attributes.called[0]]
                    starts = wrapper_positions(self.module, callee)
                    return _Frame(callee, operands, op, starts=starts)
                if at in frame.starts:
                    place.append(operands[0])
                    continue
                op = self._called(op, frame)
            if operands != op.operands:
                op = with_operands(op, operands)
            if names is not None:
                op = _adopted(op, names.fresh(op.name), frame.caller)
            if CONTROL in attributes:
                controlled.append((len(written), frame))
            place.append(len(written))
            written.append(op)
        frame.next = len(instructions)
        return None


def _adopted(op: Instruction, name: str, caller: Instruction | None) -> Instruction:
    """Return a callee's instruction under its new name; a call lends its metadata."""
    metadata = op.metadata or (caller.metadata if caller is not None else "")
    if name == op.name and metadata is op.metadata:
        return op
    return Instruction(
        name, op.opcode, op.shape, op.operands, op.attributes, metadata, op.backend_config,
        op.literal, op.parameter_number, op.start, op.end,
    )  # fmt: skip


def _same(written: list[Instruction], old: tuple[Instruction, ...]) -> bool:
    return len(written) == len(old) and all(
        a is b or a == b for a, b in zip(written, old, strict=True)
    )


def _with_moved_control(written: list[Instruction], at: int, frame: _Frame) -> Instruction:
    """Return an instruction that waits for what stands in the place of its predecessors."""
    op, computation = written[at], frame.computation
    names: dict[str, None] = {}
    for name in control_predecessors(op):
        position = computation.position.get(name)
        if position is not None:
            names[written[frame.place[position]].name] = None
    names.pop(op.name, None)
    attributes = without(op.attributes, {CONTROL})
    if names:
        attributes = attributes.replaced(**{CONTROL: tuple(names)})
    return op._replace(attributes=attributes)


@register
@dataclass(frozen=True, slots=True)
class InlineCalls(Pass):
    """Writes calls, fusions and asynchronous wrappers out, and gives each loop its own body."""

    name: ClassVar[str] = "inline-calls"
    establishes: ClassVar[Facts] = frozenset({FLAT_CALLS, NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    most_instructions: int = MOST_INSTRUCTIONS

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module flattened; raises LimitError where it grows too large."""
        return inlined(module, self.most_instructions), plan
