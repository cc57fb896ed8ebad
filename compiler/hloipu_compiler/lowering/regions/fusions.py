"""Lowering of fusions: elementwise ops as one expression; reductions in rows or op by op."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod

from hloipu_compiler.errors import CodegenError
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import array_shape
from hloipu_compiler.lowering.core.alternatives import Candidate, cheapest
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.expressions import node_parameters
from hloipu_compiler.lowering.core.lowering import lower_computation
from hloipu_compiler.lowering.core.scalars import scalar_text
from hloipu_compiler.lowering.core.values import Scalar, Spread, TileTensor, Value
from hloipu_compiler.lowering.ops.elementwise import sourced
from hloipu_compiler.lowering.regions.flat_rows import FlatRows, Operand, Reduction, flat_rows
from hloipu_compiler.lowering.regions.row_steps import row_region
from hloipu_runtime.codelets.core.constants import text_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.mapping import Mapping


@lowers("fusion")
def _fusion(context: LoweringContext) -> Sequence[Value]:
    computation = context.module.computation[context.attributes.called[0]]
    if all(op.opcode not in ("reduce", "fusion") for op in computation.instructions):
        return _Fusion(context, computation).lowered()
    return rows_lowered(context, partial(_op_by_op, context, computation))


def _op_by_op(context: LoweringContext, computation: Computation) -> Sequence[Value]:
    """Write a fusion's ops one by one, each where the fusion's results are wished."""
    owned = frozenset(
        leaves[0] for leaves, dies in zip(context.operands, context.last_uses, strict=True) if dies
    )
    builder = context.builder
    outer = builder.region_preferences
    preferred = (
        builder.layout.demands.get((context.computation.name, context.instruction.name, n), ())
        for n in range(len(context.results))
    )
    builder.region_preferences = tuple(demand for each in preferred for demand in each) or outer
    leaves = lower_computation(context, computation, context.operands, owned)
    builder.region_preferences = outer
    return leaves


class _Fusion:
    """Operands found in a first walk, nodes numbered behind them in a second."""

    def __init__(self, context: LoweringContext, computation: Computation) -> None:
        self.context = context
        self.computation = computation
        self.shape = context.results[0][1]
        self.operands: list[TileTensor] = []
        self.labels: list[tuple[int, ...]] = []
        self.last_uses: list[bool] = []
        self.nodes: list[Node] = []
        self.known: dict[int, int | Scalar] = {}
        """Position -> number of an operand, or a constant."""

    def lowered(self) -> list[TileTensor]:
        for position, instruction in enumerate(self.computation.instructions):
            leaf = self._leaf(instruction)
            if leaf is not None and self._is_read(position):
                self.known[position] = self._operand(leaf, instruction)
        numbers: dict[int, int] = {}
        for position, instruction in enumerate(self.computation.instructions):
            if instruction.parameter_number >= 0 or instruction.opcode in (
                "constant",
                "broadcast",
                "tuple",
            ):
                continue
            arguments = tuple(self._number(i, numbers) for i in instruction.operands)
            kind = array_shape(instruction.shape).element_type.name
            numbers[position] = self._add(
                Node(instruction.opcode, arguments, kind, node_parameters(instruction))
            )
        types = tuple(leaf.element_type for leaf in self.operands)
        root = self.computation.instructions[self.computation.root]
        results = root.operands if root.opcode == "tuple" else (self.computation.root,)
        expression = Expression(types, tuple(self.nodes), tuple(numbers[n] for n in results))
        codelet = Elementwise(expression, tuple(self.labels), len(self.shape))
        return self.context.builder.compute(
            codelet, self.operands, self.context.results, last_uses=self.last_uses
        )

    def _is_read(self, position: int) -> bool:
        """Whether an elementwise op reads a result, not only a broadcast."""
        users = self.computation.users[position]
        return any(self.computation.instructions[u].opcode != "broadcast" for u in users)

    def _leaf(self, instruction: Instruction) -> Value | None:
        """Return what stands for an instruction that computes nothing."""
        if instruction.parameter_number >= 0:
            return self.context.leaf(instruction.parameter_number)
        if instruction.opcode == "constant":
            return Scalar(
                array_shape(instruction.shape).element_type.name, scalar_text(instruction)
            )
        if instruction.opcode != "broadcast":
            return None
        source = self._leaf(self.computation.instructions[instruction.operands[0]])
        dimensions = instruction.attributes.integers("dimensions")
        match source:
            case Scalar() | TileTensor():
                return Spread(source, dimensions, self.shape)
            case Spread():
                inner = tuple(dimensions[d] for d in source.dimensions)
                return Spread(source.source, inner, self.shape)
            case _:
                raise CodegenError(
                    "E0470", f"{instruction.name!r} broadcasts what a fusion computes"
                )

    def _operand(self, leaf: Value, instruction: Instruction) -> int | Scalar:
        source, labels = sourced(leaf, len(self.shape), self.context)
        if isinstance(source, Scalar):
            return source
        last = (
            instruction.parameter_number >= 0
            and self.context.last_uses[instruction.parameter_number]
        )
        for number, operand in enumerate(self.operands):
            if operand == source and self.labels[number] == labels:
                self.last_uses[number] = self.last_uses[number] and last
                return number
        self.operands.append(source)
        self.labels.append(labels)
        self.last_uses.append(last)
        return len(self.operands) - 1

    def _number(self, position: int, numbers: dict[int, int]) -> int:
        if position in numbers:
            return numbers[position]
        known = self.known[position]
        if isinstance(known, Scalar):
            node = text_node(known.text, known.element_type)
            numbers[position] = self._add(node)
            return numbers[position]
        return known

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.operands) + len(self.nodes) - 1


OpByOp = Callable[[], Sequence[Value]]


def rows_lowered(context: LoweringContext, op_by_op: OpByOp) -> Sequence[Value]:
    """Write the steps of a fusion that reduces, in the way that takes fewest cycles."""
    rows = flat_rows(context)
    if rows is None or not prod(rows.space):
        return op_by_op()
    last = rows.ops[rows.results[0]].what
    is_one = len(rows.results) == 1 and isinstance(last, Reduction)
    forms: list[Candidate] = [op_by_op]
    few = prod(rows.space[d] for d in rows.kept) < context.builder.tile_count
    if is_one or few or _are_cut(context, rows):
        from hloipu_compiler.lowering.regions.rows_over_tiles import rows_over_tiles

        forms.append(partial(rows_over_tiles, context, rows))
    if not is_one:
        forms.append(partial(_whole_rows, context, rows))
    return cheapest(context.builder, forms, _key(context, rows))


def _are_cut(context: LoweringContext, rows: FlatRows) -> bool:
    """Whether tiles have parts of rows, of some operand."""
    for op in rows.ops:
        if isinstance(op.what, Operand):
            spans = context.builder.variables[op.what.held.variable].mapping.spans
            along = zip(op.what.labels, spans, strict=True)
            if any(d in rows.dimensions and span.axis >= 0 for d, span in along):
                return True
    return False


def _key(context: LoweringContext, rows: FlatRows) -> Hashable:
    """Return all that the choice of a region's form depends on.

    Narrow arrays lie on the next tiles each (`Builder.first_tile`). If all do, which these are
    changes no price; so tiles are counted from the first ones of the lowest array.
    """
    builder = context.builder
    demands = *builder.preferences, *builder.region_preferences
    operands = [op.what for op in rows.ops if isinstance(op.what, Operand)]
    lying = [builder.variables[operand.held.variable].mapping for operand in operands]
    wished = [mapping for demand in demands for mapping in (demand.born, demand.need)]
    lowest = min((mapping.tiles.first for mapping in (*lying, *wished)), default=0)
    lowest -= lowest % builder.machine.chip.tiles_per_exchange_bus

    def place(mapping: Mapping) -> Hashable:
        tiles = mapping.tiles
        return tiles.extents, tiles.strides, tiles.first - lowest, mapping.spans

    places = map(place, lying)
    ops: list[Hashable] = []
    for number, op in enumerate(rows.ops):
        what: Hashable = op.what
        if isinstance(op.what, Operand):
            what = op.what.labels, op.what.held.shape, next(places), rows.last_uses[number]
        ops.append((what, op.element_type, op.is_full))
    around = builder.iterations, len(builder.scopes)
    preferences = tuple(map(place, wished))
    return rows.space, rows.dimensions, tuple(ops), rows.results, preferences, around


def _whole_rows(context: LoweringContext, rows: FlatRows) -> Sequence[Value] | None:
    """Compute all of it row by row, each row whole on one tile."""
    region = row_region(rows)
    if region is None:
        return None
    codelet, operands, last_uses = region
    return context.builder.compute(codelet, operands, context.results, last_uses=last_uses)
