"""One walk forth and one back through each computation: what is made where, what is wished where.

The walk forth tells where products come to lie and what follows them; the walk back hands each
user's demand on to what it reads. Called computations come before their callers, so that a loop's
demands for its state are known where the loop stands.
"""

from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from math import prod

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.codegen.carrying import (
    made_whole,
    reshaped,
    spans_whole,
    transposed,
    untransposed,
)
from hloipu_compiler.codegen.layout import (
    UNKNOWN_TURNS,
    Demand,
    Home,
    Layout,
    LeafKey,
    chosen_home,
    heaviest,
)
from hloipu_compiler.codegen.layout_regions import region_demands
from hloipu_compiler.codegen.layout_rows import row_demand
from hloipu_compiler.codegen.layout_sources import (
    all_but,
    demands_of_dot,
    made_by_dot,
    moving_dimensions,
    placed_dot,
    tensor_of,
)
from hloipu_compiler.codegen.placing import Placement
from hloipu_compiler.codegen.site import leaf_range, leaves_of
from hloipu_compiler.codegen.tuning import Tuning
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping

_ELEMENTWISE = frozenset(name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits) | {
    "fusion"
}
_FORWARDED = frozenset("copy opt-barrier domain add-dependency".split())
_RESHAPES = frozenset("reshape bitcast dynamic-reshape".split())
_CALLERS = frozenset("while conditional call".split())

Made = tuple[Mapping | None, ...]
"""Where the arrays of a result come to lie, as far as that is known."""


def layout_of(
    module: Module,
    plan: Plan,
    machine: Machine,
    tuning: Tuning,
    kept: MappingType[int, int] | None = None,
) -> Layout:
    """Decide where the values of a module are to lie.

    `kept`: for arrays of the entry's parameters that stay on the device, the result that each is
    next; both counted as in flattened tuples.
    """
    walk = _Walk(module, plan, machine, tuning)
    for computation in _lowered(module):
        walk.computation(computation)
    walk.entry(kept or {})
    demands = {
        (computation, *key): heaviest(x)
        for computation, found in walk.demands.items()
        for key, x in found.items()
    }
    return Layout(walk.homes, walk.parameters, demands, walk.first_tiles)


def _lowered(module: Module) -> list[Computation]:
    """Return the computations that become steps, callees first."""
    wanted = {module.entry.name}
    for computation in reversed(callees_first(module, only_reachable=True)):
        if computation.name in wanted:
            for x in computation.instructions:
                if x.opcode in _CALLERS:
                    wanted.update(x.attributes.called)
    return [c for c in callees_first(module, only_reachable=True) if c.name in wanted]


class _Walk:
    def __init__(self, module: Module, plan: Plan, machine: Machine, tuning: Tuning) -> None:
        self.module = module
        self.plan = plan
        self.machine = machine
        self.tuning = tuning
        self.homes: dict[LeafKey, Home] = {}
        self.parameters: dict[int, Home] = {}
        self.demands: dict[str, dict[tuple[str, int], list[Demand]]] = {}
        """By computation, then by instruction and number of the array."""
        self.first_tiles: dict[LeafKey, int] = {}
        self._made: dict[str, list[Made]] = {}
        self._next_tile = 0

    def computation(self, computation: Computation) -> None:
        """Walk through one computation, whose callees were walked through before."""
        made: list[Made] = []
        for x in computation.instructions:
            made.append(self._forth(computation, x, made))
        self._made[computation.name] = made
        self._backwards(computation, {})

    def _backwards(self, computation: Computation, ends: MappingType[int, Mapping]) -> None:
        """Walk back through a computation, some of whose results are to end where they are kept."""
        self.demands[computation.name] = {}
        for leaf, mapping in ends.items():
            self._wish(computation, computation.root, Demand(mapping, mapping, 1, ""), leaf)
        made = self._made[computation.name]
        for position in reversed(range(len(computation.instructions))):
            self._back(computation, position, made)

    def entry(self, kept: MappingType[int, int]) -> None:
        """Choose where the entry's parameters are born."""
        entry = self.module.entry
        results = self._made[entry.name][entry.root]
        number = 0
        ends: dict[int, Mapping] = {}
        for position in entry.parameters:
            x = entry.instructions[position]
            for leaf, shape in enumerate(leaves_of(x.shape)):
                if shape.element_type.name == "token":
                    continue
                tensor = Tensor(shape.element_type.name, shape.dimensions)
                follows = kept.get(number, -1)
                made = results[follows] if 0 <= follows < len(results) else None
                key = entry.name, x.name, leaf
                found = self._home(tensor, key, made, 1)
                if found is not None:
                    self.parameters[number] = found
                    if follows >= 0:
                        ends[follows] = found.mapping
                number += 1
        if ends:
            self._backwards(entry, ends)

    def _home(self, tensor: Tensor, key: LeafKey, made: Mapping | None, turns: int) -> Home | None:
        demands = heaviest(self._known(*key))
        return self._chosen(tensor, demands, made, turns)

    def _chosen(
        self, tensor: Tensor, demands: Sequence[Demand], made: Mapping | None, turns: int
    ) -> Home | None:
        price = self.tuning.code_cycles_per_byte
        return chosen_home(self.machine, tensor, demands, made, turns, price)

    def _known(self, computation: str, name: str, leaf: int = 0) -> Sequence[Demand]:
        return self.demands.get(computation, {}).get((name, leaf), ())

    # --- forth ------------------------------------------------------------------------------------

    def _forth(self, computation: Computation, x: Instruction, made: Sequence[Made]) -> Made:
        """Return where the result of an instruction comes to lie."""
        opcode = x.opcode
        if opcode == "tuple":
            return tuple(m for i in x.operands for m in made[i])
        if opcode == "get-tuple-element":
            shape = computation.instructions[x.operands[0]].shape
            if isinstance(shape, TupleShape):
                return made[x.operands[0]][leaf_range(shape, x.attributes.integer("index"))]
        if opcode == "while":
            return self._loop(computation, x)
        if opcode == "fusion" and not isinstance(x.shape, ArrayShape):
            leaves = (x._replace(shape=leaf) for leaf in leaves_of(x.shape))
            return tuple(self._anchor(computation, each, made) for each in leaves)
        if not isinstance(x.shape, ArrayShape):
            return (None,) * len(leaves_of(x.shape))
        return (self._made_array(computation, x, made),)

    def _made_array(
        self, computation: Computation, x: Instruction, made: Sequence[Made]
    ) -> Mapping | None:
        opcode = x.opcode
        if opcode == "dot":
            placed = placed_dot(self.machine, self.tuning, computation, x)
            first = self._first_tile(computation, x, placed.placement)
            return made_by_dot(computation, x, placed, first)
        if opcode in _ELEMENTWISE:
            return self._anchor(computation, x, made)
        if not x.operands:
            return None
        if len(made[x.operands[0]]) != 1:
            return None
        (source,) = made[x.operands[0]]
        tensor = tensor_of(x)
        if opcode == "dynamic-update-slice" and source is None:
            update = tensor_of(computation.instructions[x.operands[1]])
            moving = moving_dimensions(tensor.shape, update.shape)
            return all_but(tensor, moving, self.machine.chip.tiles_per_ipu)
        if source is None:
            return None
        if opcode in _FORWARDED or opcode == "dynamic-update-slice":
            return source
        if opcode in _RESHAPES:
            before = tensor_of(computation.instructions[x.operands[0]])
            return reshaped(source, before.shape, tensor.shape)
        if opcode == "transpose":
            return transposed(source, x.attributes.integers("dimensions"))
        return None

    def _anchor(
        self, computation: Computation, x: Instruction, made: Sequence[Made]
    ) -> Mapping | None:
        """Return where an operand of the result's sizes comes to lie, the first that is known."""
        shape = x.shape
        if not isinstance(shape, ArrayShape) or not shape.dimensions:
            return None
        for i in x.operands:
            other = computation.instructions[i].shape
            if not made[i] or made[i][0] is None or not isinstance(other, ArrayShape):
                continue
            if other.dimensions == shape.dimensions:
                return made[i][0]
        return None

    def _first_tile(self, computation: Computation, x: Instruction, placement: Placement) -> int:
        """Return where a product's grid begins: narrow ones not all on the first tiles.

        Pairs of tiles that share a bus get the same data only if a grid begins with a whole pair.
        """
        count, tiles = placement.tiles.count, self.machine.chip.tiles_per_ipu
        if 2 * count > tiles:
            return 0
        bus = self.machine.chip.tiles_per_exchange_bus
        first = self._next_tile % (tiles - count + 1) // bus * bus
        self._next_tile = (first + count) % tiles
        self.first_tiles[(computation.name, x.name, 0)] = first
        return first

    def _loop(self, computation: Computation, x: Instruction) -> Made:
        """Choose homes for what a loop carries; return where its results lie."""
        condition, body = _condition_and_body(self.module, x)
        results = self._made[body.name][body.root]
        trips = self.plan.trips(computation.name, x.name) or UNKNOWN_TURNS
        parameter = body.instructions[body.parameters[0]].name
        other = condition.instructions[condition.parameters[0]].name
        found: list[Mapping | None] = []
        for leaf, shape in enumerate(leaves_of(x.shape)):
            tensor = Tensor(shape.element_type.name, shape.dimensions)
            demands = [*self._known(body.name, parameter, leaf)]
            demands += self._known(condition.name, other, leaf)
            every = [d._replace(times=d.times * trips) for d in heaviest(demands)]
            made = results[leaf] if leaf < len(results) else None
            home = self._chosen(tensor, every, made, trips)
            if home is not None:
                self.homes[(computation.name, x.name, leaf)] = home
            found.append(home.mapping if home is not None else None)
        ends = {leaf: mapping for leaf, mapping in enumerate(found) if mapping is not None}
        if ends:
            self._backwards(body, ends)
        return tuple(found)

    # --- back -------------------------------------------------------------------------------------

    def _wish(self, computation: Computation, position: int, demand: Demand, leaf: int = 0) -> None:
        key = computation.instructions[position].name, leaf
        self.demands[computation.name].setdefault(key, []).append(demand)

    def _back(self, computation: Computation, position: int, made: Sequence[Made]) -> None:
        """Hand the demands for a result on to what it is made of."""
        x = computation.instructions[position]
        opcode = x.opcode
        if not x.operands:
            return
        if opcode == "dot":
            placed = placed_dot(self.machine, self.tuning, computation, x)
            first = self.first_tiles.get((computation.name, x.name, 0), 0)
            wishes = demands_of_dot(self.machine, computation, x, placed, first)
            for i, wish in zip(x.operands, wishes, strict=False):
                self._wish(computation, i, wish)
        elif opcode in ("tuple", "get-tuple-element"):
            self._back_through_tuple(computation, x)
        elif opcode in _CALLERS:
            self._back_into_callees(computation, x)
        elif isinstance(x.shape, ArrayShape):
            demands = heaviest(self._known(computation.name, x.name))
            self._back_through_array(computation, x, demands, made)
        elif opcode == "fusion":
            for number, leaf in enumerate(leaves_of(x.shape)):
                demands = heaviest(self._known(computation.name, x.name, number))
                each = x._replace(shape=leaf)
                self._back_through_elementwise(computation, each, demands, made)
        if opcode == "fusion":
            for at, wish in region_demands(self.machine, self.module, computation, x):
                self._wish(computation, at, wish)

    def _back_through_tuple(self, computation: Computation, x: Instruction) -> None:
        name = computation.name
        if x.opcode == "get-tuple-element":
            shape = computation.instructions[x.operands[0]].shape
            if isinstance(shape, TupleShape):
                places = leaf_range(shape, x.attributes.integer("index"))
                for leaf, place in enumerate(range(places.start, places.stop)):
                    for wish in heaviest(self._known(name, x.name, leaf)):
                        self._wish(computation, x.operands[0], wish, place)
            return
        leaf = 0
        for i in x.operands:
            for own in range(len(leaves_of(computation.instructions[i].shape))):
                for wish in heaviest(self._known(name, x.name, leaf)):
                    self._wish(computation, i, wish, own)
                leaf += 1

    def _back_into_callees(self, computation: Computation, x: Instruction) -> None:
        """Hand on what called computations wish for their parameters."""
        if x.opcode == "while":
            for leaf in range(len(leaves_of(x.shape))):
                home = self.homes.get((computation.name, x.name, leaf))
                if home is not None:
                    wish = Demand(home.mapping, home.mapping, 1, home.user or x.name)
                    self._wish(computation, x.operands[0], wish, leaf)
            return
        first = 1 if x.opcode == "conditional" else 0
        for number, name in enumerate(x.attributes.called):
            callee = self.module.computation[name]
            given = x.operands[first + number : first + number + 1] if first else x.operands
            for i, parameter in zip(given, callee.parameters, strict=False):
                shape = callee.instructions[parameter].shape
                for leaf in range(len(leaves_of(shape))):
                    own = callee.instructions[parameter].name
                    for wish in heaviest(self._known(name, own, leaf)):
                        self._wish(computation, i, wish, leaf)

    def _back_through_array(
        self,
        computation: Computation,
        x: Instruction,
        demands: Sequence[Demand],
        made: Sequence[Made],
    ) -> None:
        opcode = x.opcode
        if opcode in _ELEMENTWISE:
            self._back_through_elementwise(computation, x, demands, made)
            return
        source = computation.instructions[x.operands[0]]
        if not isinstance(source.shape, ArrayShape):
            return
        if opcode in ("dynamic-slice", "dynamic-update-slice"):
            self._back_through_indexing(computation, x, demands)
            return
        own = row_demand(self.machine, computation, x)
        if own is not None:
            self._wish(computation, x.operands[0], own)
        for demand in demands:
            wish = _seen_before(x, tensor_of(source), demand)
            if wish is not None:
                self._wish(computation, x.operands[0], wish)

    def _back_through_elementwise(
        self,
        computation: Computation,
        x: Instruction,
        demands: Sequence[Demand],
        made: Sequence[Made],
    ) -> None:
        """Operands of the result's sizes are wished where it is, or where another one is made."""
        shape = x.shape.dimensions  # type: ignore[union-attr]
        if not shape:
            return
        alike = [
            i
            for i in dict.fromkeys(x.operands)
            if isinstance(other := computation.instructions[i].shape, ArrayShape)
            and other.dimensions == shape
        ]
        for i in alike:
            for d in demands:
                self._wish(computation, i, d._replace(need=d.born))
            beside = [made[j][0] for j in alike if j != i and made[j][0] is not None]
            if made[i][0] is None and beside and beside[0] is not None:
                self._wish(computation, i, Demand(beside[0], beside[0], 1, x.name))

    def _back_through_indexing(
        self, computation: Computation, x: Instruction, demands: Sequence[Demand]
    ) -> None:
        """Wish what data decides whole on each tile, the rest as users wish, or in blocks."""
        data = tensor_of(computation.instructions[x.operands[0]])
        part = tensor_of(x)
        if x.opcode == "dynamic-update-slice":
            part = tensor_of(computation.instructions[x.operands[1]])
        moving = moving_dimensions(data.shape, part.shape)
        wishes = [
            Demand(mapping, mapping, d.times, d.user)
            for d in demands
            if (mapping := self._indexed(x, d.born, data, moving)) is not None
        ]
        if not wishes:
            mapping = all_but(data, moving, self.machine.chip.tiles_per_ipu)
            if mapping is None:
                return
            wishes = [Demand(mapping, mapping, 1, x.name)]
        for wish in wishes:
            self._wish(computation, x.operands[0], wish)
        if x.opcode == "dynamic-update-slice":
            wish = wishes[0]
            born = made_whole(wish.born, part.shape, moving)
            need = Mapping(wish.born.tiles, spans_whole(wish.born, part.shape, moving))
            self._wish(computation, x.operands[1], wish._replace(born=born, need=need))

    def _indexed(
        self, x: Instruction, born: Mapping, data: Tensor, moving: Sequence[int]
    ) -> Mapping | None:
        """Return where indexed data lies for a user; None where too few tiles would be left.

        An update is written wherever data lies: every tile looks whether it has the place.
        """
        if x.opcode == "dynamic-update-slice" and not born.replicated_axes:
            return born
        return _fitting(born, data.shape, moving)


def _condition_and_body(module: Module, x: Instruction) -> tuple[Computation, Computation]:
    """Return a loop's computations, in whichever order its attributes stand."""
    condition, body = (module.computation[name] for name in x.attributes.called)
    if x.attributes.text("condition") not in ("", condition.name):
        return body, condition
    return condition, body


def _fitting(born: Mapping, shape: tuple[int, ...], moving: Sequence[int]) -> Mapping | None:
    """Return a mapping with indexed dimensions whole; None where too few tiles would be left."""
    if not moving:
        return born
    found = made_whole(born, shape, moving)
    return found if 2 * found.tiles.count >= born.tiles.count else None


def _seen_before(x: Instruction, source: Tensor, demand: Demand) -> Demand | None:
    """Return the demand for the operand of an op that only sees it differently, or takes a part."""
    shape = tensor_of(x).shape
    if x.opcode in _FORWARDED:
        return demand
    if x.opcode in _RESHAPES:
        born = reshaped(demand.born, shape, source.shape)
        if born is None:
            return None
        need = reshaped(demand.need, shape, source.shape)
        return demand._replace(born=born, need=need or born)
    if x.opcode == "transpose":
        permutation = x.attributes.integers("dimensions")
        return demand._replace(
            born=untransposed(demand.born, permutation),
            need=untransposed(demand.need, permutation),
        )
    if x.opcode == "slice" and prod(source.shape) < 4 * prod(shape):
        cut = moving_dimensions(source.shape, shape)
        found = _fitting(demand.born, source.shape, cut)
        return None if found is None else demand._replace(born=found, need=found)
    return None
