"""Converts a module in Graphcore's encoding to a plain step and its requests.

The step is one micro-batch and its update. Its parameters are those of the module, then what queues
feed, then counters; its results are those of the module, then new state that the module keeps to
itself, then what queues take, then counters. Aliases in the header say which results are state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.analysis.call_graph import without_unreached
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.core.sheet import marked
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.core.traces import UPDATE_PHASE
from hloipu_compiler.graphcore.encoding.core.values import Value
from hloipu_compiler.graphcore.encoding.flat_writing import FlatWriter
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.attributes import Alias, Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.call_forms import MOST_INSTRUCTIONS, check_inlined_size
from hloipu_compiler.passes.framework.names import Names

_SAME_VALUE = frozenset({"reshape", "copy", "bitcast", "convert"})
_KEPT_IN_HEADER = frozenset({"replica_count", "num_partitions"})


@dataclass(frozen=True)
class FlatStep:
    """A plain step, and what is asked for."""

    module: Module
    stated: Stated


@dataclass(slots=True)
class _State:
    """A parameter with the position of its new value."""

    parameter: int
    new: int
    role: str = ""


class Ending:
    """Makes the step of what was written; `is_encoded`: with phases that are known."""

    def __init__(
        self,
        module: Module,
        writer: FlatWriter,
        root: Value,
        iterations: int,
        *,
        is_encoded: bool = True,
    ) -> None:
        self.is_encoded = is_encoded
        self.module = module
        self.writer = writer
        self.made = writer.made
        self.iterations = iterations
        """Updates of a run."""
        self.read: list[int] = []
        """Values that count iterations of a loop, which nothing may read."""
        entry = module.entry
        last = entry.instructions[entry.root]
        self.results = writer.leaves(root, last, writer.ending_here())
        self.parameters = len(entry.parameters)

    def step(self, stated: Stated) -> FlatStep:
        """Return the step."""
        reduction = self.writer.reduced()
        states = self._states()
        live = self._live(states)
        for at in self.read:
            if live[at]:
                raise self._no_state(at, at)
        if self.is_encoded and not self.writer.stages:
            self._mark_forward(states, live)
        counts = [x for x in self.writer.counts.values() if live[x.parameter]]
        numbers = {at: n for n, at in enumerate(self._parameter_positions(counts))}
        for count in counts:
            role = "" if count.context.phase == UPDATE_PHASE else "carry"
            states.append(_State(count.parameter, count.next, role))
        places = {at: n for n, at in enumerate(self.results)}
        for state in states:
            if state.new not in places:
                places[state.new] = len(self.results)
                self.results.append(state.new)
        outfeeds = []
        feed_names = {feed.name for feed in self.writer.feeds}
        for queue in self.writer.outfeeds:
            first = len(self.results)
            self.results += queue.positions
            if queue.name in feed_names:
                queue.name += ".outfeed"
            name = f"{queue.name}:last" if queue.takes_last else queue.name
            outfeeds.append((name, tuple(range(first, len(self.results)))))
        state_numbers = {numbers[s.parameter] for s in states}
        fed = {numbers[at] for feed in self.writer.feeds for at in feed.positions}
        constants = [n for n in range(self.parameters) if n not in state_numbers | fed]
        roles = [(numbers[s.parameter], s.role) for s in states if s.role]
        roles += [(n, "const") for n in constants]
        stated = replace(
            stated,
            reduction=reduction if self.writer.anchors and stated.micro_batches > 1 else "",
            roles=tuple(sorted(roles)),
            feeds=tuple(
                (feed.name, tuple(numbers[at] for at in feed.positions))
                for feed in self.writer.feeds
            ),
            outfeeds=tuple(outfeeds),
        )
        aliases = tuple(
            Alias((places[s.new],), numbers[s.parameter], (), "must-alias")
            for s in sorted(states, key=lambda s: places[s.new])
        )
        return FlatStep(self._module(numbers, aliases, stated), stated)

    def _parameter_positions(self, counts: Sequence[object]) -> list[int]:
        positions = list(range(self.parameters))
        positions += [at for feed in self.writer.feeds for at in feed.positions]
        return positions + [count.parameter for count in counts]  # type: ignore[attr-defined]

    # -- state ---------------------------------------------------------------------------------

    def _states(self) -> list[_State]:
        """Return what stays on the device: operand i becomes result i.

        Raises PoplarError E0549 for a value that goes on from iteration to iteration and is no
        parameter.
        """
        writer = self.writer
        state_by_parameter: dict[int, _State] = {}
        changed: list[int] = []
        for number, (old, new) in enumerate(zip(writer.inputs, writer.outputs, strict=False)):
            if not isinstance(old, int) or not isinstance(new, int) or old == new:
                continue
            if not _are_alike(self.made[old].shape, self.made[new].shape):
                raise self._no_state(number, old)
            parameter = self._parameter(old)
            if parameter is None or parameter in state_by_parameter:
                if self.iterations > 1:
                    raise self._no_state(number, old)
                continue
            varies = writer.traces.get(new) is not None and not self._is_late(new)
            role = "carry" if varies and self.is_encoded else ""
            state_by_parameter[parameter] = _State(parameter, new, role)
            changed.append(parameter)
        if self.iterations > 1:
            self._check_unchanged(changed)
        for at in self.results:
            if at < self.parameters and at not in state_by_parameter:
                state_by_parameter[at] = _State(at, at)
        return [state_by_parameter[at] for at in sorted(state_by_parameter)]

    def _is_late(self, position: int) -> bool:
        trace = self.writer.traces.get(position)
        return trace is not None and trace.late

    def _parameter(self, position: int) -> int | None:
        """Return the module's parameter that a value is, if only moved."""
        at = position
        while self.made[at].opcode in _SAME_VALUE or is_identity(self.made[at]):
            at = self.made[at].operands[0]
        shape, parameter_shape = self.made[position].shape, self.made[at].shape
        if at >= self.parameters or not _are_alike(shape, parameter_shape):
            return None
        return at

    def _no_state(self, number: int, position: int) -> PoplarError:
        return errors.CARRIED(
            f"value {number}, {self.made[position].name!r}, goes from one update to the next, and "
            "is not a parameter of its own",
            hint="make what the loop begins with a parameter, and return what it ends with",
            op=self.made[position],
        )

    def _check_unchanged(self, changed: Sequence[int]) -> None:
        """Raise where a value that stays the same is made of one that does not."""
        depends = bytearray(len(self.made))
        for at in changed:
            depends[at] = 1
        for at, op in enumerate(self.made):
            depends[at] |= any(depends[i] for i in op.operands)
        pairs = zip(self.writer.inputs, self.writer.outputs, strict=False)
        for number, (old, new) in enumerate(pairs):
            if isinstance(old, int) and old == new and depends[old]:
                raise self._no_state(number, old)

    def _mark_forward(self, states: Sequence[_State], live: bytearray) -> None:
        """Mark what leads to what micro-batches give out, or to gradients where that is nothing."""
        writer = self.writer
        goals = [at for queue in writer.outfeeds if not queue.late for at in queue.positions]
        goals += [s.new for s in states if s.role == "carry"]
        wanted = self._ancestors(goals)
        ends = [i for op in writer.anchors for i in self.made[op.position].operands]
        learning = self._ancestors(ends)
        learned = [s.parameter for s in states if s.new != s.parameter and learning[s.parameter]]
        if not goals or not all(wanted[at] for at in learned):
            wanted = bytearray(a | b for a, b in zip(wanted, learning, strict=True))
        for at, op in enumerate(self.made):
            if wanted[at] and live[at] and op.parameter_number < 0 and op.opcode != "constant":
                attributes = marked(op.attributes, {"ipu_phase": "fwd"}, frozenset())
                self.made[at] = op._replace(attributes=attributes)

    # -- the module ----------------------------------------------------------------------------

    def _ancestors(self, goals: Sequence[int]) -> bytearray:
        is_ancestor = bytearray(len(self.made))
        for at in goals:
            is_ancestor[at] = 1
        for at in range(len(self.made) - 1, -1, -1):
            if is_ancestor[at]:
                for i in self.made[at].operands:
                    is_ancestor[i] = 1
        return is_ancestor

    def _live(self, states: Sequence[_State]) -> bytearray:
        goals = [*self.results, *(s.new for s in states)]
        return self._ancestors(
            [*goals, *(at for queue in self.writer.outfeeds for at in queue.positions)]
        )

    def _module(
        self, numbers: dict[int, int], aliases: tuple[Alias, ...], stated: Stated
    ) -> Module:
        module = self.module
        shape = TupleShape(tuple(self.made[at].shape for at in self.results))
        root = Instruction(Names(op.name for op in self.made).fresh("step"), "tuple", shape,
                           tuple(self.results))  # fmt: skip
        instructions_and_root = [*self.made, root]
        live = bytearray(len(instructions_and_root))
        live[-1] = 1
        for at in range(len(instructions_and_root) - 1, -1, -1):
            op = instructions_and_root[at]
            if live[at] or at in numbers or "outfeed" in op.opcode or "infeed" in op.opcode:
                live[at] = 1
                for i in op.operands:
                    live[i] = 1
        place: dict[int, int] = {}
        instructions: list[Instruction] = []
        for at, op in enumerate(instructions_and_root):
            if live[at]:
                place[at] = len(instructions)
                operands = tuple(place[i] for i in op.operands)
                instructions.append(
                    op._replace(operands=operands, parameter_number=numbers.get(at, -1))
                )
        entry = Computation(module.entry.name, tuple(instructions), len(instructions) - 1)
        callees = [c for c in module.computations if c.name != module.entry.name]
        callees += self.writer.loops.computations
        frontend_attributes = read_frontend_attributes(
            str(module.attributes.get("frontend_attributes", ""))
        )
        header = {key: v for key, v in module.attributes.items() if key in _KEPT_IN_HEADER}
        if aliases:
            header["input_output_alias"] = aliases
        words = stated.attributes() | frontend_attributes
        if words:
            header["frontend_attributes"] = frontend_attributes_text(words)
        return without_unreached(
            Module(
                module.name, (*callees, entry), len(callees), Attributes(header),
                module.stack_tables, module.source,
            )
        )  # fmt: skip


def _are_alike(first: object, second: object) -> bool:
    return (
        isinstance(first, ArrayShape)
        and isinstance(second, ArrayShape)
        and first.element_type is second.element_type
        and first.dimensions == second.dimensions
    )


def check_size(module: Module) -> None:
    """Raise LimitError (E5020) where writing a module out makes too much of it."""
    check_inlined_size(module, MOST_INSTRUCTIONS)
