"""Demands of ops that work along whole dimensions: operands split in the others."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.factors import FactorKind
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.layout.sources import all_but, tensor_of
from hloipu_compiler.planners.indexed_grids import best_of
from hloipu_compiler.planners.op_grids import Demand
from hloipu_compiler.planners.placing import GRAIN_BYTES, mapping_of, split
from hloipu_compiler.planners.reading_plans import gather_codelet, readings
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_compiler.planners.reduction_plans import partial_type, reduction_plan
from hloipu_compiler.planners.spreading import spread_over_copies
from hloipu_compiler.planners.stages import PlacedOperand, staged
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes

_MEMORY_PERCENT = 60


def row_demand(machine: Machine, computation: Computation, x: Instruction) -> Demand | None:
    """Return the demand of an instruction on its first operand; None where it has none."""
    if not x.operands:
        return None
    source = computation.instructions[x.operands[0]]
    if not isinstance(source.shape, ArrayShape) or not source.shape.dimensions:
        return None
    tensor = tensor_of(source)
    if 0 in tensor.shape:
        return None
    if x.opcode == "reduce" and len(x.operands) == 2:
        preference = reduction_preference(machine, tensor, x.attributes.integers("dimensions"))
        return preference and Demand(preference[0], preference[0], 1, x.name, preference[1])
    if x.opcode == "transpose":
        bits = ELEMENT_TYPES[tensor.element_type].bits
        default = mapping_of(tensor.shape, bits, machine.chip.tiles_per_ipu)
        order = x.attributes.integers("dimensions")
        from hloipu_compiler.planners.transposing import transposition_preference

        preference = transposition_preference(machine, tensor, order, default)
        return preference and Demand(preference[0], preference[0], 1, x.name, preference[1])
    if x.opcode == "gather" and len(x.operands) == 2:
        return _table_demand(machine, computation, x, tensor)
    dimensions = _along(computation, x, tensor.shape)
    mapping = all_but(tensor, dimensions, machine.chip.tiles_per_ipu) if dimensions else None
    return None if mapping is None else Demand(mapping, mapping, 1, x.name)


def _table_demand(
    machine: Machine, computation: Computation, x: Instruction, table: Tensor
) -> Demand | None:
    """Return where a table lies best for a gather, if it is spread among those who read it."""
    tiles = machine.chip.tiles_per_ipu
    result, indices = tensor_of(x), tensor_of(computation.instructions[x.operands[1]])
    if 0 in (*result.shape, *indices.shape):
        return None
    codelet, moving = gather_codelet(x, table.shape)
    defaults = [
        mapping_of(t.shape, ELEMENT_TYPES[t.element_type].bits, tiles) for t in (table, indices)
    ]
    operands = PlacedOperand(table, defaults[0]), PlacedOperand(indices, defaults[1])
    chosen = best_of(machine, readings(machine, codelet, moving, operands, result))
    given = [table, indices]
    spans = chosen.codelet.indexing(given, chosen.results).operands[0]
    need = Mapping(chosen.placement.tiles, chosen.placement.spans(spans, table.shape))
    born = spread_over_copies(need, table.shape, table.element_type)
    before, after = (
        redistribution(machine, table.element_type, table.shape, lying, need).price
        for lying in (defaults[0], born)
    )
    return Demand(born, need, 1, x.name, before) if after < before else None


def _along(computation: Computation, x: Instruction, shape: Sizes) -> Sequence[int]:
    """Return the dimension that an op goes along on each tile."""
    if x.opcode in ("sort", "topk"):
        return rule_in(computation, x).dimensions(0, FactorKind.WHOLE)
    if x.opcode == "reduce-window":
        from hloipu_runtime.codelets.ops.windows import running_dimension

        running = running_dimension(x.attributes.window().dimensions, shape)
        return () if running < 0 else (running,)
    return ()


@lru_cache(1 << 10)
def reduction_preference(
    machine: Machine, tensor: Tensor, dimensions: tuple[int, ...]
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
    before = reduction_plan(
        machine, codelet, (kind,), (partial_type(kind),), shape, default, budget_bytes
    ).price
    indexing = codelet.indexing([tensor, Tensor(kind, ())], [Tensor(kind, kept)])
    ones = (1,) * len(kept)
    grains = (*ones[:-1], max(1, GRAIN_BYTES * 8 // bits))
    best: tuple[Mapping, int] | None = None
    for placement in {
        split(kept, ones, grain, parts, 0)
        for grain in (ones, grains)
        for parts in (tiles, min(tiles, max(2, default.tiles.count)))
    }:
        need = Mapping(placement.tiles, placement.spans(indexing.operands[0], shape))
        init = PlacedOperand(Tensor(kind, ()), None)
        stage = staged(
            machine, codelet, (PlacedOperand(tensor, need), init), (Tensor(kind, kept),), placement
        )
        saved = before - stage.price
        if saved > 0 and stage.held_bytes <= budget_bytes and (best is None or saved > best[1]):
            best = need, saved
    return best
