"""Gradients combined over replicas, before the update: their mean, by few all-reduces.

Graphcore's optimizers divide by the number of replicas, whatever micro-batches are combined by
(graphcore/tensorflow: tensorflow/python/ipu/optimizers/cross_replica_optimizer.py).
"""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.ops.collectives import met
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.collective import ALL_REDUCE, CollectiveForm


def mean_over_replicas(
    builder: Builder, replicas: int, gradients: Sequence[TileTensor]
) -> list[TileTensor]:
    """Write the means of gradients over all replicas; each stays on its IPU.

    One all-reduce for all of one element type: a ring's phases each take a meeting, however much
    they move.
    """
    everyone = (tuple(range(replicas)),)
    form = CollectiveForm(ALL_REDUCE, everyone, monoid="add")
    means: dict[int, TileTensor] = {}
    for kind in dict.fromkeys(x.element_type for x in gradients):
        places = [n for n, x in enumerate(gradients) if x.element_type == kind]
        mine = [gradients[n] for n in places]
        builder.origin = "gradients"
        kinds = [(x.element_type, x.shape) for x in mine]
        summed = met(builder, form, mine, kinds, [True] * len(mine))
        for n, total in zip(places, summed, strict=True):
            means[n] = _divided(builder, total, replicas)
    return [means[n] for n in range(len(gradients))]


def _divided(builder: Builder, total: TileTensor, replicas: int) -> TileTensor:
    kind = total.element_type
    builder.ipu = builder.variables[total.variable].ipu
    share = number_node(1 / replicas, kind)
    part = Expression((kind,), (share, Node("multiply", (0, 1), kind)), (2,))
    axes = tuple(range(len(total.shape)))
    codelet = Elementwise(part, (axes,), len(axes))
    return builder.compute(codelet, [total], [(kind, total.shape)], last_uses=[True])[0]
