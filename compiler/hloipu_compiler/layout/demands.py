"""Demands of ops on where their operands lie: dots, reductions, and ops along whole dimensions."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.planners.dot_grids import COLUMNS, ROWS, DotWork
from hloipu_compiler.planners.dot_placement import PlacedDot, dot_codelet, dot_placement
from hloipu_compiler.planners.indexed_grids import best_of
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import GRAIN_BYTES, MINIMUM_BYTES, gathered, mapping_of, split
from hloipu_compiler.planners.reading_plans import gather_codelet, readings
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_compiler.planners.reduction_plans import ReductionWork, reduction_plan
from hloipu_compiler.planners.spreading import even_grids, spread_over_copies, worth_sharing
from hloipu_compiler.planners.stages import PlacedOperand, Work, bytes_of, staged
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.codelet import Index
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.element_rules import partial_type
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.costs.computing import codelet_work
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE, CodePrice, arriving, exchange_price
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles

_MEMORY_PERCENT = 60


def tensor_of(instruction: Instruction) -> Tensor:
    """Return type and sizes of an instruction that makes one array."""
    shape = array_shape(instruction.shape)
    return Tensor(shape.element_type.name, shape.dimensions)


def placed_dot(
    machine: Machine, tuning: Tuning, computation: Computation, instruction: Instruction
) -> PlacedDot:
    """Return the grid of a dot product, from tile 0 on."""
    lhs, rhs = (tensor_of(computation.instructions[i]) for i in instruction.operands)
    result = tensor_of(instruction)
    return dot_placement(DotWork(machine, dot_codelet(instruction), lhs, rhs, result, tuning))


def beginning(placed: PlacedDot, first: int) -> Tiles:
    """Return a product's grid from another tile on."""
    grid = placed.placement.tiles
    return Tiles(grid.extents, grid.strides, first)


def demands_of_dot(
    machine: Machine,
    computation: Computation,
    instruction: Instruction,
    placed: PlacedDot,
    first: int,
    code_price: CodePrice,
) -> list[Demand]:
    """Return the demand of a dot product on each of its operands; nothing without elements."""
    operands = [tensor_of(computation.instructions[i]) for i in instruction.operands]
    if not all(array.elements for array in (*operands, placed.result)):
        return []
    tiles = beginning(placed, first)
    indexing = placed.codelet.indexing(operands, [placed.result])
    demands = []
    for tensor, indices in zip(operands, indexing.operands, strict=True):
        need = Mapping(tiles, placed.placement.spans(indices, tensor.shape))
        demands.append(Demand(_born(machine, tensor, need, code_price), need, 1, instruction.name))
    return demands


def _born(machine: Machine, tensor: Tensor, need: Mapping, code_price: CodePrice) -> Mapping:
    """Return where an operand best lies that tiles need so: there, if each part is needed once.

    Else tiles that need the same part share it out.
    """
    shared = spread_over_copies(need, tensor.shape, tensor.element_type)
    if not is_complete(need, tensor.shape):
        # What one of several slices reads.
        return shared
    if not need.replicated_axes:
        return need
    near = _on_the_same_tiles(tensor, need)
    if near is None:
        return shared
    return min(
        (shared, near),
        key=lambda mapping: redistribution(machine, *tensor, mapping, need, code_price).price,
    )


def _on_the_same_tiles(tensor: Tensor, need: Mapping) -> Mapping | None:
    """Return the mapping in which each tile has a piece of the part that it needs."""
    spans = list(need.spans)
    blocks = [min(span.size, size) for span, size in zip(spans, tensor.shape, strict=True)]
    copies = prod(need.tiles.extents[axis] for axis in need.replicated_axes)
    if copies > worth_sharing(blocks, tensor.element_type):
        return None
    for axis in need.replicated_axes:
        copies = need.tiles.extents[axis]
        free = [d for d, span in enumerate(spans) if span.axis < 0 and span.size >= copies]
        if not free:
            return None
        size = spans[free[0]].size
        block = -(-size // copies)
        if -(-size // block) != copies:
            return None
        spans[free[0]] = Span(axis, block, 0, block)
    return Mapping(need.tiles, tuple(spans))


def made_by_dot(
    computation: Computation, instruction: Instruction, placed: PlacedDot, first: int
) -> Mapping | None:
    """Return where a product comes to lie, its pieces added."""
    if placed.plan.sliced in (ROWS, COLUMNS):
        return None
    operands = [tensor_of(computation.instructions[i]) for i in instruction.operands]
    indexing = placed.codelet.indexing(operands, [placed.result])
    spans = placed.placement.spans(indexing.results[0], placed.result.shape)
    mapping = Mapping(beginning(placed, first), spans)
    if not placed.codelet.part:
        return mapping
    shape = tensor_of(instruction).shape
    reduced = gathered(mapping, shape)
    return None if reduced is None else reduced.mapping(shape)


def all_but(tensor: Tensor, moving: Sequence[int], tiles: int) -> Mapping | None:
    """Return blocks of all dimensions but some, which are whole on each tile; None without any."""
    shape = tensor.shape
    weights = tuple(0 if d in moving else 1 for d in range(len(shape)))
    others = prod(size for size, weight in zip(shape, weights, strict=True) if weight)
    bits = ELEMENT_TYPES[tensor.element_type].bits
    parts = min(tiles, others, max(1, prod(shape) * bits // (8 * MINIMUM_BYTES)))
    if parts < 2:
        return None
    return split(shape, weights, (1,) * len(shape), parts).mapping(shape)


def row_demand(
    machine: Machine, computation: Computation, instruction: Instruction, code_price: CodePrice
) -> Demand | None:
    """Return the demand of an instruction on its first operand; None where it has none."""
    if not instruction.operands:
        return None
    source = computation.instructions[instruction.operands[0]]
    if not isinstance(source.shape, ArrayShape) or not source.shape.dimensions:
        return None
    tensor = tensor_of(source)
    if 0 in tensor.shape:
        return None
    if instruction.opcode == "reduce" and len(instruction.operands) == 2:
        preference = reduction_preference(
            machine, tensor, instruction.attributes.integers("dimensions"), code_price
        )
        return preference and Demand(
            preference[0], preference[0], 1, instruction.name, preference[1]
        )
    if instruction.opcode == "transpose":
        bits = ELEMENT_TYPES[tensor.element_type].bits
        default = mapping_of(tensor.shape, bits, machine.chip.tiles_per_ipu)
        order = instruction.attributes.integers("dimensions")
        from hloipu_compiler.planners.transposing import transposition_preference

        preference = transposition_preference(machine, tensor, order, default, code_price)
        return preference and Demand(
            preference[0], preference[0], 1, instruction.name, preference[1]
        )
    if instruction.opcode == "gather" and len(instruction.operands) == 2:
        return _table_demand(machine, computation, instruction, tensor, code_price)
    dimensions = _along(computation, instruction, tensor.shape)
    mapping = all_but(tensor, dimensions, machine.chip.tiles_per_ipu) if dimensions else None
    return None if mapping is None else Demand(mapping, mapping, 1, instruction.name)


def _table_demand(
    machine: Machine,
    computation: Computation,
    instruction: Instruction,
    table: Tensor,
    code_price: CodePrice,
) -> Demand | None:
    """Return where a table lies best for a gather, if it is spread among those who read it."""
    tiles = machine.chip.tiles_per_ipu
    result, indices = (
        tensor_of(instruction),
        tensor_of(computation.instructions[instruction.operands[1]]),
    )
    if 0 in (*result.shape, *indices.shape):
        return None
    codelet, moving = gather_codelet(instruction, table.shape)
    defaults = [
        mapping_of(t.shape, ELEMENT_TYPES[t.element_type].bits, tiles) for t in (table, indices)
    ]
    operands = PlacedOperand(table, defaults[0]), PlacedOperand(indices, defaults[1])
    work = Work(machine, codelet, operands, (result,), code_price)
    chosen = best_of(machine, readings(work, moving))
    given = [table, indices]
    spans = chosen.codelet.indexing(given, chosen.results).operands[0]
    need = Mapping(chosen.placement.tiles, chosen.placement.spans(spans, table.shape))
    born = spread_over_copies(need, table.shape, table.element_type)
    before, after = (
        redistribution(machine, *table, lying, need, code_price).price
        for lying in (defaults[0], born)
    )
    return Demand(born, need, 1, instruction.name, before) if after < before else None


def _along(computation: Computation, instruction: Instruction, shape: Sizes) -> Sequence[int]:
    """Return the dimension that an op goes along on each tile."""
    if instruction.opcode in ("sort", "topk"):
        return rule_in(computation, instruction).dimensions(0, FactorKind.WHOLE)
    if instruction.opcode == "reduce-window":
        from hloipu_runtime.codelets.ops.windows import running_dimension

        running = running_dimension(instruction.attributes.window().dimensions, shape)
        return () if running < 0 else (running,)
    return ()


@lru_cache(1 << 10)
def reduction_preference(
    machine: Machine,
    tensor: Tensor,
    dimensions: tuple[int, ...],
    code_price: CodePrice = NO_CODE_PRICE,
) -> tuple[Mapping, int] | None:
    """Return where a sum needs no exchange, and the cycles that this saves; None if none.

    Saved against where the array lies without any demand. Other reducers have the same.
    """
    kind, shape = tensor
    kept = tuple(n for d, n in enumerate(shape) if d not in dimensions)
    if not dimensions or prod(kept) < 2:
        return None
    codelet = Reduce(dimensions, "add", None, (kind,))
    bits = ELEMENT_TYPES[kind].bits
    tiles = machine.chip.tiles_per_ipu
    default = mapping_of(shape, bits, tiles)
    budget_bytes = machine.memory.bytes_per_tile * _MEMORY_PERCENT // 100
    types = (kind,), (partial_type(kind),)
    reduction = ReductionWork(machine, codelet, *types, shape, default, code_price)
    before = reduction_plan(reduction, budget_bytes).price
    indexing = codelet.indexing([tensor, Tensor(kind, ())], [Tensor(kind, kept)])
    ones = (1,) * len(kept)
    grains = (*ones[:-1], max(1, GRAIN_BYTES * 8 // bits))
    best: tuple[Mapping, int] | None = None
    for placement in {
        split(kept, ones, grain, parts)
        for grain in (ones, grains)
        for parts in (tiles, min(tiles, max(2, default.tiles.count)))
    }:
        need = Mapping(placement.tiles, placement.spans(indexing.operands[0], shape))
        init = PlacedOperand(Tensor(kind, ()), None)
        work = Work(machine, codelet, (PlacedOperand(tensor, need), init), (Tensor(kind, kept),))
        stage = staged(work, placement)
        saved = before - stage.price
        if saved > 0 and stage.held_bytes <= budget_bytes and (best is None or saved > best[1]):
            best = need, saved
    return best


class _Effort(NamedTuple):
    """What the ops of a region do with one array's elements."""

    rounds: int = 0
    """Reductions that follow from each other."""
    sums: int = 0
    """All reductions."""
    ops: int = 0
    """Ops on all elements."""


def region_demands(
    machine: Machine,
    module: Module,
    computation: Computation,
    instruction: Instruction,
    code_price: CodePrice = NO_CODE_PRICE,
) -> Iterator[tuple[int, Demand]]:
    """Yield positions of a fusion's operands, with the demand on each.

    With rows whole on a tile no partial results are to be brought together. Where rows are few, or
    do not go into the tiles evenly, other grids leave less on the fullest tile: parameters, which
    no op makes elsewhere, lie so where that costs less. They are demanded where they lie as usual
    too, and each demand has the region's price for any place: others weigh what it loses there.
    What a convolution reads of a parameter's norm comes from those grids in more pieces than from
    blocks of rows, which costs more.
    """
    called = module.computation[instruction.attributes.called[0]]
    reduced = first_reduction(module, called)
    if reduced is None or 0 in reduced[0]:
        return
    space, dimensions = reduced
    effort = _effort(module, called, space)
    is_convolved = _reaches_convolution(computation, instruction, prod(space))
    for position in dict.fromkeys(instruction.operands):
        source = computation.instructions[position]
        if not isinstance(source.shape, ArrayShape) or source.shape.dimensions != space:
            continue
        is_parameter = source.parameter_number >= 0
        if is_parameter and is_convolved:
            continue
        tensor = tensor_of(source)
        rows = reduction_preference(machine, tensor, dimensions, code_price)
        usual = mapping_of(
            space, ELEMENT_TYPES[tensor.element_type].bits, machine.chip.tiles_per_ipu
        )
        if rows is not None and 2 * rows[0].tiles.count < usual.tiles.count:
            rows = None
        if is_parameter:
            region = _Region(machine, tensor, dimensions, effort, code_price)
            best = _even_grid(region, (usual,) if rows is None else (usual, rows[0]))
            if best != usual or 2 * usual.tiles.count > machine.chip.tiles_per_ipu:
                saved = region(usual) - region(best)
                yield position, Demand(best, best, 1, instruction.name, saved, region)
        elif rows is not None:
            saved = effort.sums * rows[1]
            yield position, Demand(rows[0], rows[0], 1, instruction.name, saved)


_HANDING_ON = frozenset("bitcast convert copy get-tuple-element reshape transpose".split())


def _reaches_convolution(computation: Computation, instruction: Instruction, size: int) -> bool:
    """Whether a convolution reads an array of that size that an op makes."""
    pending = [computation.position[instruction.name]]
    while pending:
        for position in computation.users[pending.pop()]:
            user = computation.instructions[position]
            if user.opcode == "convolution" and any(
                prod(tensor_of(computation.instructions[i]).shape) == size for i in user.operands
            ):
                return True
            if user.opcode in _HANDING_ON:
                pending.append(position)
    return False


def first_reduction(
    module: Module, computation: Computation
) -> tuple[Sizes, tuple[int, ...]] | None:
    """Return the sizes and the dimensions of the first array that a fusion reduces."""
    for instruction in computation.instructions:
        if instruction.opcode == "fusion":
            inner = first_reduction(module, module.computation[instruction.attributes.called[0]])
            if inner is not None:
                return inner
        elif instruction.opcode == "reduce":
            source = computation.instructions[instruction.operands[0]].shape
            if isinstance(source, ArrayShape):
                return source.dimensions, instruction.attributes.integers("dimensions")
    return None


def _effort(module: Module, computation: Computation, space: Sizes) -> _Effort:
    depth: list[int] = []
    sums = ops = 0
    for instruction in computation.instructions:
        rounds = max((depth[x] for x in instruction.operands), default=0)
        opcode, shape = instruction.opcode, instruction.shape
        if opcode == "fusion":
            callee = module.computation[instruction.attributes.called[0]]
            inner = _effort(module, callee, space)
            rounds, sums, ops = rounds + inner.rounds, sums + inner.sums, ops + inner.ops
        elif opcode == "reduce":
            rounds, sums = rounds + 1, sums + 1
        elif opcode not in ("parameter", "broadcast", "constant", "tuple"):
            ops += isinstance(shape, ArrayShape) and shape.dimensions == space
        depth.append(rounds)
    return _Effort(max(depth, default=0), sums, ops)


_MOST_OPS = 64
"""Of a region, in its price."""


@dataclass(frozen=True)
class _Region:
    """Ops on an array that one of them reduces, and what they take where it lies.

    Work counts as that of one vertex and of all sums, exchanges as often as sums wait for each
    other.
    """

    machine: Machine
    tensor: Tensor
    dimensions: tuple[int, ...]
    effort: _Effort
    code_price: CodePrice

    def __call__(self, mapping: Mapping) -> int:
        return _price(self, mapping)

    def working(self, mapping: Mapping) -> int:
        """Return the cycles of the ops that are no sums."""
        kind, shape = self.tensor
        number = kind if ELEMENT_TYPES[kind].is_float else "s32"
        every = tuple(range(len(shape)))
        kept = tuple(d for d in every if d not in self.dimensions)
        count = max(1, min(self.effort.ops, _MOST_OPS))
        nodes = tuple(Node("add", (1 + n if n else 0, 1), number, ()) for n in range(count))
        expression = Expression((number, number), nodes, (1 + count,))
        vertex = Elementwise(expression, (every, kept), len(shape))
        sizes = tuple(min(x.size, n) for x, n in zip(mapping.spans, shape, strict=True))
        part, row = Tensor(number, sizes), Tensor(number, tuple(sizes[d] for d in kept))
        return codelet_work(vertex, self.machine, (part, row), (part,)).cycles


@lru_cache(1 << 12)
def _price(region: _Region, mapping: Mapping) -> int:
    machine, effort, (kind, shape) = region.machine, region.effort, region.tensor
    types = (kind,), (partial_type(kind),)
    codelet = Reduce(region.dimensions, "add", None, (kind,))
    reduction = ReductionWork(machine, codelet, *types, shape, mapping, region.code_price)
    plan = reduction_plan(reduction, machine.memory.bytes_per_tile * _MEMORY_PERCENT // 100)
    moving = plan.cycles.total - plan.cycles.compute
    return region.working(mapping) + effort.sums * plan.cycles.compute + effort.rounds * moving


@lru_cache(1 << 10)
def _even_grid(region: _Region, beside: tuple[Mapping, ...]) -> Mapping:
    """Return where a region's array lies best.

    Looked at are those of `beside` and even grids, which have to save more than it takes to move
    the array: what reads it, or what the region makes of it, may want it elsewhere, as convolutions
    do. A grid on which the region cannot take less is not planned: no tile sums its share faster
    than all of that into one.
    """
    machine, (kind, shape) = region.machine, region.tensor
    tiles = machine.chip.tiles_per_ipu
    grids = [
        Mapping(placement.tiles, placement.spans([Index(d) for d in range(len(shape))], shape))
        for grain in (1, max(1, GRAIN_BYTES * 8 // ELEMENT_TYPES[kind].bits))
        for placement in even_grids(shape, tiles, grain)
    ]
    share, one = Tensor(kind, (over(prod(shape), tiles),)), Tensor(kind, ())
    summing = Reduce((0,), "add", None, (kind,))
    least = region.effort.sums * codelet_work(summing, machine, (share, one), (one,)).cycles
    best = before = min(beside, key=region)
    for mapping in grids:
        if region.working(mapping) + least < region(best) and region(mapping) < region(best):
            best = mapping
    part_bytes = bytes_of(Tensor(kind, tuple(span.size for span in best.spans)))
    moving = exchange_price(machine, [arriving(machine, part_bytes)]).cycles
    return best if region(before) - region(best) > moving else before
