"""Lowering of batch normalisation: split by features, or by sums over all tiles.

Formulas: openxla/xla: batchnorm_expander.cc.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.scalars import zero_text
from hloipu_compiler.lowering.core.values import Scalar, TileTensor, Value
from hloipu_compiler.lowering.ops.reductions import reduce
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.dense.batch_norm import BatchNormGrad, BatchNormTraining
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.reduce import Reduce

_FEATURES_PER_TILE = 4
"""A tile in this many must get a feature for statistics to be left to one tile each (assumed)."""

_FEATURE_ELEMENTS = 1 << 13
"""Most elements of a feature that one tile is left with."""


@lowers("batch-norm-training", "batch-norm-inference", "batch-norm-grad")
def _batch_norm(context: LoweringContext) -> Sequence[Value]:
    feature = context.attributes.integer("feature_index")
    operands = [context.tile_tensor(n) for n in range(len(context.operands))]
    count = operands[0].shape[feature]
    each = prod(operands[0].shape) // max(1, count)
    enough = _FEATURES_PER_TILE * count >= context.builder.tile_count
    opcode = context.instruction.opcode
    if opcode != "batch-norm-inference" and enough and each <= _FEATURE_ELEMENTS:
        epsilon = float(context.attributes.number("epsilon")).hex()
        kind = BatchNormTraining if opcode == "batch-norm-training" else BatchNormGrad
        codelet = kind(epsilon, feature, context.results[0][0])
        return context.builder.compute(codelet, operands, context.results)
    norm = _Norm(context, feature, operands[0])
    if opcode == "batch-norm-training":
        return norm.training(*operands)
    if opcode == "batch-norm-grad":
        return norm.gradient(*operands)
    tensor, scale, offset, mean, variance = operands
    (factor,) = norm.of_features(norm.factor(variance, scale), 1, [variance, scale])
    return [norm.normalised(tensor, mean, factor, offset)]


class _Formula:
    """Writes an expression in one wide float type."""

    def __init__(self, operand_types: Sequence[str], wide: str) -> None:
        self.types, self.wide = tuple(operand_types), wide
        self.nodes: list[Node] = []
        self.operands = [self.converted(n, wide) for n in range(len(self.types))]

    def converted(self, number: int, kind: str) -> int:
        """Return a number in another type, itself where it has that type already."""
        given = len(self.types)
        now = self.types[number] if number < given else self.nodes[number - given].element_type
        return number if now == kind else self._add(Node("convert", (number,), kind))

    def constant(self, value: float) -> int:
        return self._add(number_node(value, self.wide))

    def op(self, name: str, *arguments: int) -> int:
        return self._add(Node(name, arguments, self.wide))

    def whole(self, *results: int) -> Expression:
        return Expression(self.types, tuple(self.nodes), results)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.types) + len(self.nodes) - 1


class _Norm:
    """Writes the steps of one batch normalisation."""

    def __init__(self, context: LoweringContext, feature: int, x: TileTensor) -> None:
        self.context, self.builder, self.feature = context, context.builder, feature
        self.shape, self.kind = x.shape, context.results[0][0]
        self.wide = "f64" if self.kind == "f64" else "f32"
        self.features = (x.shape[feature],)
        self.others = tuple(d for d in range(len(x.shape)) if d != feature)
        self.count = prod(x.shape[d] for d in self.others)
        # An HLO module holds epsilon as a 32-bit float.
        self.epsilon = float(np.float32(context.attributes.number("epsilon")))

    def training(self, x: TileTensor, scale: TileTensor, offset: TileTensor) -> list[TileTensor]:
        """Return the normalised operand, its mean and its variance."""
        formula = _Formula([self.wide], self.wide)
        mean_of = formula.op("divide", 0, formula.constant(self.count))
        results = (mean_of, formula.converted(mean_of, self.kind))
        mean, shown_mean = self._shown(formula, results, [self._sum(x)])
        formula = _Formula([x.element_type, self.wide], self.wide)
        centred = formula.op("subtract", *formula.operands)
        squares = self._large(formula.whole(formula.op("multiply", centred, centred)), [x, mean])
        total = self._sum(squares)
        formula = _Formula([self.wide, scale.element_type], self.wide)
        variance = formula.op("divide", 0, formula.constant(self.count))
        factor_of = self._factor(formula, variance, formula.operands[1])
        results = (factor_of, formula.converted(variance, self.kind))
        factor, shown_variance = self._shown(formula, results, [total, scale])
        return [self.normalised(x, mean, factor, offset), shown_mean, shown_variance]

    def gradient(
        self,
        x: TileTensor,
        scale: TileTensor,
        mean: TileTensor,
        variance: TileTensor,
        gradient: TileTensor,
    ) -> list[TileTensor]:
        formula = _Formula([x.element_type, mean.element_type, gradient.element_type], self.wide)
        a, b, c = formula.operands
        centred = formula.op("multiply", formula.op("subtract", a, b), c)
        products = self._sum(self._large(formula.whole(centred), [x, mean, gradient]))
        total = self._sum(gradient)
        small = [variance, scale, products, total]
        formula = _Formula([s.element_type for s in small], self.wide)
        spread, scaled, of_scale, of_offset = formula.operands
        root = self._root(formula, spread)
        of_scale = formula.op("multiply", of_scale, root)
        count = formula.constant(self.count)
        slope = formula.op("divide", formula.op("multiply", of_scale, root), count)
        results = (
            formula.op("multiply", scaled, root),
            slope,
            formula.op("divide", of_offset, count),
            formula.converted(of_scale, self.kind),
            formula.converted(of_offset, self.kind),
        )
        factor, slope_held, level, scale_gradient, offset_gradient = self._shown(
            formula, results, small
        )
        operands = [x, mean, gradient, factor, slope_held, level]
        formula = _Formula([s.element_type for s in operands], self.wide)
        a, b, c, times, along, below = formula.operands
        sloping = formula.op("multiply", formula.op("subtract", a, b), along)
        left = formula.op("subtract", formula.op("subtract", c, sloping), below)
        operand_gradient = formula.converted(formula.op("multiply", left, times), self.kind)
        return [
            self._large(formula.whole(operand_gradient), operands),
            scale_gradient,
            offset_gradient,
        ]

    def factor(self, variance: TileTensor, scale: TileTensor) -> Expression:
        """Return scale / sqrt(variance + epsilon) as an expression."""
        formula = _Formula([variance.element_type, scale.element_type], self.wide)
        return formula.whole(self._factor(formula, *formula.operands))

    def normalised(
        self, x: TileTensor, mean: TileTensor, factor: TileTensor, offset: TileTensor
    ) -> TileTensor:
        """Return (x - mean) * factor + offset."""
        operands = [x, mean, factor, offset]
        formula = _Formula([s.element_type for s in operands], self.wide)
        a, b, times, plus = formula.operands
        product = formula.op("multiply", formula.op("subtract", a, b), times)
        result = formula.converted(formula.op("add", product, plus), self.kind)
        return self._large(formula.whole(result), operands)

    def of_features(
        self, expression: Expression, results: int, operands: Sequence[TileTensor]
    ) -> list[TileTensor]:
        codelet = Elementwise(expression, ((0,),) * len(operands), 1)
        kinds = [expression.type_of(n) for n in expression.results[:results]]
        return self.builder.compute(codelet, operands, [(k, self.features) for k in kinds])

    def _shown(
        self, formula: _Formula, results: tuple[int, ...], operands: Sequence[TileTensor]
    ) -> list[TileTensor]:
        """Compute several results, those that are one number only once."""
        distinct = tuple(dict.fromkeys(results))
        tensors = self.of_features(formula.whole(*distinct), len(distinct), operands)
        return [tensors[distinct.index(number)] for number in results]

    def _large(self, expression: Expression, operands: Sequence[TileTensor]) -> TileTensor:
        """Compute on all elements; operands of one dimension follow the features."""
        every = tuple(range(len(self.shape)))
        labels = tuple(every if s.shape == self.shape else (self.feature,) for s in operands)
        codelet = Elementwise(expression, labels, len(self.shape))
        kind = expression.type_of(expression.results[0])
        return self.builder.compute(codelet, operands, [(kind, self.shape)])[0]

    def _sum(self, x: TileTensor) -> TileTensor:
        zero = self.builder.scalar(Scalar(self.wide, zero_text(self.wide)))
        return reduce(self.context, Reduce(self.others, "add", None, (self.wide,)), [x, zero])[0]

    def _root(self, formula: _Formula, variance: int) -> int:
        spread = formula.op("add", variance, formula.constant(self.epsilon))
        return formula.op("rsqrt", spread)

    def _factor(self, formula: _Formula, variance: int, scale: int) -> int:
        return formula.op("multiply", scale, self._root(formula, variance))
