"""A step that is cut into micro-batches, under construction: what its parts share; its update."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.io_tiles import IoTiles
from hloipu_compiler.lowering.core.lowering import lower_instructions
from hloipu_compiler.lowering.core.offloading import NOTHING_OFFLOADED, Offloads, bytes_of, is_large
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.pipelines.entry_calls import Element, EntryCalls
from hloipu_compiler.passes.framework.rewriting import in_order
from hloipu_compiler.plan.pipelining import Part, Pipelining
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Port, Role
from hloipu_runtime.program.steps import ValueId, VariableId


def order_by_results(update: Computation) -> Computation:
    """Return an update ordered by its results; the same one where effects keep their order.

    So what comes from remote memory is on tiles for a short while only. Results that no later one
    needs are made one after the other, each with all that it needs right before it: the new value
    of a weight, and with it the new state of its optimizer, before anything of the next weight.
    Time grows with the instructions.
    """
    root = update.instructions[update.root]
    if root.opcode != "tuple" or any(
        has_side_effect(op) or control_predecessors(op) for op in update.instructions
    ):
        return update
    seen: set[int] = set()
    last = [n for n in sorted(frozenset(root.operands), reverse=True) if _fresh(update, n, seen)]
    order: list[int] = list(update.parameters)
    placed = set(order)
    for position in reversed(last):
        order += sorted(_fresh(update, position, placed))
    order += [n for n in range(len(update.instructions)) if n not in placed]
    return in_order(update, order)


def _fresh(update: Computation, position: int, known: set[int]) -> list[int]:
    """Return all that an instruction needs, itself included, that is not known; now it is."""
    fresh: list[int] = []
    waiting = [position]
    while waiting:
        number = waiting.pop()
        if number not in known:
            known.add(number)
            fresh.append(number)
            waiting += update.instructions[number].operands
    return fresh


@dataclass
class Making:
    """The step that is lowered: its plan, and the variables and values written so far."""

    builder: Builder
    module: Module
    plan: Plan
    wrapping: Wrapping
    pipelining: Pipelining
    calls: EntryCalls
    parameters: list[Port] = field(default_factory=list)
    results: list[Port] = field(default_factory=list)
    loaded: list[ValueId] = field(default_factory=list)
    given: dict[int, Value] = field(default_factory=dict)
    """Arrays of the parameters that are there for the whole step."""
    fed: dict[int, TileTensor] = field(default_factory=dict)
    """Arrays of the parameters that queues feed to positions of the pipeline."""
    made: dict[Element, Value] = field(default_factory=dict)
    """Results of calls."""
    maker: dict[tuple[ValueId, int], tuple[int, TileTensor]] = field(default_factory=dict)
    """Values of the pipeline and IPUs: the position that makes each there, or passes it on."""
    channels: list[s.Channel] = field(default_factory=list)
    offloads: Offloads = NOTHING_OFFLOADED
    remote: dict[int, dict[int, TileTensor]] = field(default_factory=dict)
    """Weights in remote memory: parameters -> IPUs -> where they lie there."""
    cast: dict[Element, dict[int, TileTensor]] = field(default_factory=dict)
    """What was made of weights before the micro-batches, likewise."""
    standing: list[VariableId] = field(default_factory=list)
    """Variables that take memory throughout the micro-batches: state and accumulators."""
    apart: IoTiles | None = None
    """Tiles that the queues have their buffers on."""

    @cached_property
    def in_pipeline(self) -> frozenset[str]:
        """Names of the calls that run for each micro-batch."""
        return frozenset(part.call for part in self.pipelining.parts)

    @cached_property
    def ipus(self) -> dict[str, int]:
        """The IPU of each call of the pipeline."""
        return {part.call: part.ipu for part in self.pipelining.parts}

    @property
    def is_spread(self) -> bool:
        """Whether ops of calls are on IPUs of their own, which the plan has."""
        return bool(self.plan.held_ipus)

    def ipu_of(self, call: str, element: int) -> int:
        """Return the IPU that a result of a call is made on; 0 outside of the pipeline."""
        if self.is_spread:
            return self.plan.held_ipus.get((self.module.entry.name, call, element), 0)
        return self.ipus.get(call, 0)

    def ipu_at(self, position: int) -> int:
        """Return the IPU that a value of the entry lies on."""
        number = self.calls.parameter(position)
        if number is not None:
            return self.pipelining.homes.get(number, 0)
        return self.ipu_of(*self.calls.element(position))

    def ipu_for(self, part: Part, position: int) -> int:
        """Return the IPU to which a value of the entry is brought for a call that reads it.

        Ops that are spread over IPUs bring it on themselves, from where it lies.
        """
        return self.ipu_at(position) if self.is_spread else part.ipu

    def maker_of(self, result: int) -> str:
        """Return the name of the call that makes a result; empty for a parameter."""
        return self.calls.maker(self.calls.result_positions[result])

    def lower(
        self, instruction: Instruction, operands: Sequence[Sequence[Value]], owned: frozenset[Value]
    ) -> list[Value]:
        """Write what a call runs; its results are known from then on."""
        computation = self.module.computation[instruction.attributes.called[0]]
        if instruction.name == self.pipelining.update and self.offloads != NOTHING_OFFLOADED:
            computation = order_by_results(computation)
        results = lower_instructions(
            self.builder, self.module, self.plan, computation, operands, owned
        )
        for number, leaf in enumerate(results):
            self.made[(instruction.name, number)] = leaf
        return results

    def standing_bytes(self, position: int) -> int:
        """Return the bytes that stand on the IPU at hand, whatever a call of a position reads.

        What waits for positions that are not written yet is counted as if it lay evenly.
        """
        ipu = self.builder.ipu
        waiting = (
            v for channel in self.channels for v in channel.places if v != channel.destination
        )
        there = (self.builder.variables[v] for v in (*self.standing, *waiting))
        bytes_there = sum(
            variable.bytes_per_tile * variable.mapping.tiles.count
            for variable in there
            if variable.ipu == ipu and variable.role is not Role.REMOTE
        )
        later = [x for (reader, at), x in self._waiting.items() if at == ipu and reader > position]
        return bytes_there + sum(later)

    @cached_property
    def _waiting(self) -> dict[tuple[int, int], int]:
        """Bytes of what waits on tiles for several micro-batches, by its reader and the IPU."""
        positions, timetable = self.pipelining.positions, self.pipelining.schedule.timetable
        number = {part.call: n for n, position in enumerate(positions) for part in position.parts}
        read = {
            (self.calls.element(i), reader, self.ipu_for(part, i)): self.calls.array_at(i)
            for reader, position in enumerate(positions)
            for part in position.parts
            for i in self.calls[part.call].operands
            if self.calls.parameter(i) is None
        }
        waiting_bytes: dict[tuple[int, int], int] = {}
        for ((call, _), reader, ipu), kind in read.items():
            maker = number.get(call, reader)
            count = timetable.micro_batches_waiting(maker, reader) if maker != reader else 1
            if count > 1 and not (self.offloads.activations and is_large(kind)):
                waiting_bytes[reader, ipu] = waiting_bytes.get((reader, ipu), 0) + count * bytes_of(
                    kind
                )
        return waiting_bytes

    def result_leaves(self) -> list[Value | None]:
        """Return each result of the entry, as far as it is made."""
        return [self.result_leaf(n) for n in range(len(self.calls.result_positions))]

    def result_leaf(self, result: int) -> Value | None:
        """Return one result of the entry, if it is made."""
        position = self.calls.result_positions[result]
        number = self.calls.parameter(position)
        if number is not None:
            return self.given.get(number)
        return self.made.get(self.calls.element(position))
