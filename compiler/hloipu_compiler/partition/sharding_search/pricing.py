"""What the program of one device takes: cycles of its ops and of its links, and bytes at its peak.

Products have the price of their cheapest grid, collectives that of their phases over the links, as
when compiled. Elementwise ops are priced by what they load and store, each tile its share, but for
what elementwise ops compute for them; those that move data by what they read and write, between
tiles. All others, as sorts and convolutions, are compiled alone. Nothing overlaps. Prices are kept
by what an op looks like, so that a candidate that changes a few ops costs a few prices.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.live_bytes import Running, peak_bytes
from hloipu_compiler.analysis.op_cost import CALLS, FREE, OpCosts
from hloipu_compiler.analysis.participant_groups import groups_of, pairs_of
from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES, ELEMENTWISE, Trait, with_trait
from hloipu_compiler.ir.shapes import Shape, byte_count
from hloipu_compiler.memo import Same
from hloipu_compiler.partition.sharding_search.folding import stands_for, unfolded
from hloipu_compiler.planners.dot_placement import product_cycles
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.costs.collecting import phases
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import beginning, sync
from hloipu_runtime.machine.links import Flow, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.collective import REDUCING, CollectiveForm

_NO_WORK = FREE | frozenset("reshape broadcast iota copy".split())
"""Beside what computes nothing: ops that lie where their operand does, or come with their users."""
CODE_BYTES = 600
"""Of code and of vertices' state on a tile, for each op that is not elementwise: those are done
with others. Assumed; 390 to 1,000 in training steps of networks, more where ops are few."""
_BY_BYTES = ELEMENTWISE | (with_trait(Trait.DATA_MOVEMENT) - {"gather"})
"""What these read and write says how long they take; indices of a gather are looked up as well."""
_FUSED = ELEMENTWISE | frozenset("broadcast constant iota".split())
"""Values that elementwise ops read where they are computed, not from memory."""
_VIEWS = frozenset("partition-id replica-id".split())


class Spent(NamedTuple):
    """Cycles of one device, once through a program."""

    computing: int = 0
    """On the chip: products, vectors, exchange between tiles, and their barriers."""
    meeting: int = 0
    """Over links between IPUs, with the barriers of their phases."""

    @property
    def cycles(self) -> int:
        """All of them: nothing overlaps."""
        return self.computing + self.meeting

    def plus(self, other: "Spent", times: int = 1) -> "Spent":
        """Return the cycles of both, one of them several times."""
        return Spent(self.computing + other.computing * times, self.meeting + other.meeting * times)


class BlockPrices:
    """Prices of programs of one device on a machine, for one number of devices."""

    def __init__(
        self, machine: Machine, tuning: Tuning, devices: int, assumed_trips: int = 1
    ) -> None:
        self.machine, self.tuning, self.devices = machine, tuning, devices
        self.assumed_trips = assumed_trips
        self.tiles = machine.chip.tiles_per_ipu
        self.known: dict[tuple[object, ...], Spent] = {}
        self.written: dict[tuple[object, ...], int] = {}
        """Numbers of constants and of what is made of them: ops are priced with those they read."""

    def spent(self, module: Module) -> Spent:
        """Return the cycles of a module's entry, those of loops as often as they turn."""
        costs = OpCosts(module)
        done: dict[str, Spent] = {}
        for computation in callees_first(module, only_reachable=True):
            total = Spent()
            forms = self._forms(computation)
            for op in computation.instructions:
                times = stands_for(op).times
                if op.opcode not in CALLS:
                    total = total.plus(self._op(module, costs, computation, op, forms), times)
                    continue
                called = [done[name] for name in op.attributes.called]
                if op.opcode == "conditional":
                    total = total.plus(max(called, key=lambda spent: spent.cycles), times)
                    continue
                times *= self._trips(module, computation, op) if op.opcode == "while" else 1
                for spent in called:
                    total = total.plus(spent, times)
            done[computation.name] = total
        return done[module.entry.name]

    def _trips(self, module: Module, computation: Computation, op: Instruction) -> int:
        trips = trip_count(module, computation, op)
        return self.assumed_trips if trips is None else trips

    def _forms(self, computation: Computation) -> list[Hashable]:
        """Return what an op that is compiled alone has of each value: a shape, or what makes it."""
        from hloipu_compiler.cost_survey.op_prices import is_written_out

        forms: list[Hashable] = []
        for op in computation.instructions:
            form: Hashable = op.shape
            if is_written_out(computation, op):
                literal = op.literal and Same(op.literal)
                operands = tuple([forms[i] for i in op.operands])
                said = op.opcode, op.shape, op.attributes, literal, operands
                form = self.written.setdefault(said, len(self.written))
            forms.append(form)
        return forms

    def _op(
        self,
        module: Module,
        costs: OpCosts,
        computation: Computation,
        op: Instruction,
        forms: Sequence[Hashable],
    ) -> Spent:
        """Return the cycles of one op; equal ones are priced once."""
        if op.opcode in _NO_WORK or op.opcode in _VIEWS:
            return Spent()
        operands = [computation.instructions[i] for i in op.operands]
        if op.opcode in ELEMENTWISE:
            operands = [x for x in operands if x.opcode not in _FUSED]
        shapes = tuple([x.shape for x in operands])
        read = shapes if op.opcode in _BY_BYTES else tuple([forms[i] for i in op.operands])
        key = (op.opcode, op.attributes, op.shape, read)
        if op.opcode in COLLECTIVES:
            # The channel is another one each time.
            said = (op.attributes.get("replica_groups"), op.attributes.get("source_target_pairs"))
            key = (op.opcode, *said, byte_count_of(shapes))  # type: ignore[assignment]
        spent = self.known.get(key)
        if spent is None:
            if op.opcode in COLLECTIVES:
                spent = Spent(0, self._collective(op, byte_count_of(shapes)))
            else:
                cycles = product_cycles(self.machine, self.tuning, op, shapes)
                if cycles is None and op.opcode not in _BY_BYTES:
                    cycles = self._compiled(module, computation, op)
                spent = Spent(
                    self._other(costs, computation, op, shapes) if cycles is None else cycles
                )
            self.known[key] = spent
        return spent

    def _compiled(self, module: Module, computation: Computation, op: Instruction) -> int | None:
        """Return the cycles of an op that is compiled alone; None where that cannot be."""
        from hloipu_compiler.cost_survey.op_prices import alone
        from hloipu_compiler.driver import one_op_program, one_op_request

        request = one_op_request(self.machine, self.tuning)
        price = alone(module, computation, op).price(
            partial(one_op_program, request), self.machine, self.tuning
        )
        return None if price is None else int(price.cycles)

    def _collective(self, op: Instruction, size_bytes: int) -> int:
        """Return the cycles of a collective, as `costs.collecting` counts them."""
        groups = groups_of(op, 1, self.devices)
        permutes = op.opcode == "collective-permute"
        pairs = pairs_of(op, 1, self.devices) if permutes else ()
        total = 0
        for phase in phases(CollectiveForm(op.opcode, groups, pairs)):
            part = over(size_bytes, phase.parts)
            flows = [Flow(source, target, part) for source, target in phase.pairs]
            cycles = link_transfer(self.machine, flows, self.devices).cycles
            cycles += sync(self.machine, self.devices).cycles
            if phase.reduces and op.opcode in REDUCING:
                cycles += self._on_vectors(2 * part)
            total += cycles * phase.times
        return total

    def _other(
        self, costs: OpCosts, computation: Computation, op: Instruction, shapes: tuple[Shape, ...]
    ) -> int:
        cost = costs.of(computation, op)
        if op.opcode in ELEMENTWISE:
            vectors = self._on_vectors(byte_count_of(shapes) + cost.bytes_written)
            return vectors + over(cost.transcendentals, self.tiles)
        moved = cost.bytes_read + cost.bytes_written
        received = over(over(moved, self.tiles), self.machine.exchange.receive_bytes_per_cycle)
        start = beginning(self.machine).cycles + sync(self.machine).cycles
        return start + received + over(cost.flops + cost.transcendentals, 2 * self.tiles)

    def _on_vectors(self, moved_bytes: int) -> int:
        """Return the cycles in which all tiles load and store so much, each its share."""
        tile = self.machine.tile
        start = tile.supervisor_vertex_cycles + tile.run_workers_cycles
        return start + over(over(moved_bytes, self.tiles), tile.store_bytes_per_cycle)


def byte_count_of(shapes: tuple[Shape, ...]) -> int:
    """Return the bytes of some operands."""
    return sum(map(byte_count, shapes))


def needed_bytes(module: Module, tiles: int) -> int:
    """Return the bytes of one device at the fullest moment, with its constants and code.

    `tiles`: those that have the code; 0: it is not counted. What a plan copies is no part.
    """
    running = [module.computation[name] for name in Running(module).names]
    alone = sum(
        stands_for(x).has_code
        for c in running
        for x in c.instructions
        if x.opcode not in _NO_WORK and x.opcode not in ELEMENTWISE
    )
    constants = sum(
        byte_count(op.shape)
        for c in module.computations
        for op in c.instructions
        if op.opcode == "constant"
    )
    return peak_bytes(module, unfolded) + constants + tiles * CODE_BYTES * alone
