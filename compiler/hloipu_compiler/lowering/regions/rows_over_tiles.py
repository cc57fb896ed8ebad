"""Steps of a row region whose rows are cut over tiles, as those of batch norms are.

Reductions that wait for the same values are computed together: one vertex takes all of them in,
from the region's operands, and their partial results are exchanged and added together, as popops's
reduceMany does for a norm's sums (graphcore/poplibs: lib/poplin/Norms.cpp, normStatisticsImpl).
What follows from them row by row is one vertex, and so is what has all elements.
"""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.context import LoweringContext
from hloipu_compiler.lowering.core.values import Scalar, Value
from hloipu_compiler.lowering.ops.reductions import in_stages
from hloipu_compiler.lowering.regions.flat_rows import FlatRows, Operand, Reduction
from hloipu_compiler.lowering.regions.row_steps import Step, Steps
from hloipu_compiler.planners.reduction_plans import ReductionWork, reduction_plan
from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.codelets.element_rules import partial_type
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Mapping


def rows_over_tiles(context: LoweringContext, rows: FlatRows) -> Sequence[Value] | None:
    """Compute a region step by step, each over all tiles that have its operands.

    None: it is too deep, or nothing tells where a reduction's elements are.
    """
    steps = Steps(rows, keeps_in_places=False)
    if steps.is_too_deep or len({*rows.results}) < len(rows.results):
        return None
    origin = context.builder.origin
    leaves = _Writer(context, rows, steps).written()
    context.builder.origin = origin
    return leaves


class _Writer:
    def __init__(self, context: LoweringContext, rows: FlatRows, steps: Steps) -> None:
        self.builder = context.builder
        self.rows = rows
        self.steps = steps
        self.filled = steps.filled()
        self.last_step: dict[int, int] = {}
        """Of each value that steps read: the last one that does."""
        for at, step in self.filled.items():
            for number in step.reads:
                self.last_step[number] = max(at, self.last_step.get(number, at))
        self.values = {n: op.what for n, op in enumerate(rows.ops) if isinstance(op.what, Operand)}

    def written(self) -> Sequence[Value] | None:
        for at in sorted(self.filled):
            step = self.filled[at]
            by_monoid: dict[str, dict[int, Reduction]] = {}
            for number, op in enumerate(self.rows.ops):
                if isinstance(op.what, Reduction) and self.steps.step[number] == at:
                    by_monoid.setdefault(op.what.monoid, {})[number] = op.what
            for monoid, reductions in by_monoid.items():
                if not self._reduce(step, monoid, reductions):
                    return None
            stored = tuple(
                n
                for n in step.results
                if isinstance(self.rows.ops[n].what, Node)
                and (n in self.rows.results or self.last_step.get(n, -1) > at)
            )
            if stored:
                self._compute(at, step, stored)
        return [self.values[n].held for n in self.rows.results]

    def _reduce(self, step: Step, monoid: str, reductions: dict[int, Reduction]) -> bool:
        """Write reductions by one monoid; False: no operand has all of their elements."""
        rows, builder = self.rows, self.builder
        values = tuple(x.value for x in reductions.values())
        needed = self.steps.needed(step, values)
        reads = [n for n in step.reads if n in needed]
        mapping = self._where_most_lies(reads)
        if mapping is None:
            return False
        # The one that lies there first, which has a say in where the reductions are computed.
        reads.sort(key=lambda n: (not self._is_whole(n), self._mapping(n) != mapping))
        expression = self.steps.expression(step, tuple(reads), values)
        kinds = expression.result_types
        partials = tuple(map(partial_type, kinds)) if monoid in ("add", "multiply") else kinds
        codelet, machine = Reduce(rows.dimensions, monoid, None, kinds), builder.machine
        left = ReductionWork(
            machine, codelet, kinds, partials, rows.space, mapping, builder.code_price
        )
        budget_bytes = machine.memory.bytes_per_tile * builder.tuning.memory_percent // 100
        plan = reduction_plan(left, budget_bytes)
        builder.origin = rows.ops[next(iter(reductions))].name or builder.origin
        first, *others = plan.stages
        cut = first.codelet
        if not isinstance(cut, Reduce):
            return False
        fused = FusedReduce(
            expression,
            tuple(self.values[n].labels for n in reads),
            len(rows.space),
            cut.dimensions,
            monoid,
            cut.element_types,
            cut.parts,
        )
        reduced = in_stages(
            builder,
            (first._replace(codelet=fused), *others),
            [self.values[n].held for n in reads],
            [
                builder.scalar(Scalar(kind, x.init))
                for kind, x in zip(kinds, reductions.values(), strict=True)
            ],
        )
        for number, held in zip(reductions, reduced, strict=True):
            self.values[number] = Operand(held, rows.kept)
        return True

    def _is_whole(self, number: int) -> bool:
        held, labels = self.values[number]
        return labels == tuple(range(len(labels))) and held.shape == self.rows.space

    def _mapping(self, number: int) -> Mapping:
        return self.builder.variables[self.values[number].held.variable].mapping

    def _where_most_lies(self, reads: Sequence[int]) -> Mapping | None:
        """Return the mapping that most bytes of what has all elements are in."""
        bits: dict[Mapping, int] = {}
        for number in reads:
            if self._is_whole(number):
                mapping = self._mapping(number)
                one = ELEMENT_TYPES[self.values[number].held.element_type].bits
                bits[mapping] = bits.get(mapping, 0) + one
        return max(bits, key=lambda x: bits[x]) if bits else None

    def _compute(self, at: int, step: Step, stored: tuple[int, ...]) -> None:
        """Write the values of a step that later ones or others read, in one vertex."""
        rows, builder = self.rows, self.builder
        is_full = rows.ops[stored[0]].is_full
        dimensions = tuple(range(len(rows.space))) if is_full else rows.kept
        needed = self.steps.needed(step, stored)
        reads = tuple(n for n in step.reads if n in needed)
        codelet = Elementwise(
            self.steps.expression(step, reads, stored),
            tuple(tuple(map(dimensions.index, self.values[n].labels)) for n in reads),
            len(dimensions),
        )
        sizes = tuple(rows.space[d] for d in dimensions)
        builder.origin = rows.ops[stored[-1]].name or builder.origin
        wishes = builder.preferences
        if not is_full:
            builder.preferences = ()
        held = builder.compute(
            codelet,
            [self.values[n].held for n in reads],
            [(rows.ops[n].element_type, sizes) for n in stored],
            last_uses=[self._dies(n, at) for n in reads],
        )
        builder.preferences = wishes
        for number, tensor in zip(stored, held, strict=True):
            self.values[number] = Operand(tensor, dimensions)

    def _dies(self, number: int, at: int) -> bool:
        """Whether nothing reads a value after a step."""
        if self.last_step[number] > at or number in self.rows.results:
            return False
        return self.rows.last_uses.get(number, True)
