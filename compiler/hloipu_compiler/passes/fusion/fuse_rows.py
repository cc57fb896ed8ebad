"""Fuses row regions: reductions with what they reduce and what follows row by row.

A region has a space, the sizes of what is reduced, and the dimensions that reductions run along.
To it belong elementwise ops and fusions of that space, reductions of it along those dimensions, and
elementwise ops on what they leave. Softmax is one, a layer norm, the gradient of either.

    m = f32[8] reduce(x, low), dimensions={1}           s = f32[8,9] fusion(x), kind=kInput
    b = f32[8,9] broadcast(m), dimensions={0}
    d = f32[8,9] subtract(x, b)
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from hloipu_compiler.analysis.order import effectful_computations
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import FLAT_CALLS, NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.fusion.fuse_elementwise import running
from hloipu_compiler.passes.fusion.row_finding import RowFinder
from hloipu_compiler.passes.fusion.row_writing import with_regions
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass


def rows_fused(
    module: Module, most_ops: int, ipus: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Module:
    """Return the module with regions of rows as fusions; the same one without any.

    Ops that are to run on different IPUs are not put together.
    """
    names = Names(c.name for c in module.computations)
    runs = set(running(module))
    effects = effectful_computations(module)
    made: list[Computation] = []
    entry = 0
    changed = False
    for position, computation in enumerate(module.computations):
        if computation.name in runs:
            regions = RowFinder(module, computation, effects, most_ops, ipus).found()
            if regions:
                computation, inner = with_regions(computation, regions, names)
                made += inner
                changed = True
        if position == module.entry_position:
            entry = len(made)
        made.append(computation)
    if not changed:
        return module
    return replace(module, computations=tuple(made), entry_position=entry)


@register
@dataclass(frozen=True, slots=True)
class FuseRows(Pass):
    """Makes one op of reductions and the elementwise ops around them that work row by row."""

    name: ClassVar[str] = "fuse-rows"
    requires: ClassVar[Facts] = frozenset({NO_DEAD_CODE})
    breaks: ClassVar[Facts] = frozenset({FLAT_CALLS, NO_DEAD_CODE})
    most_ops: int = 64
    """Ops and fusions of one region at most: its code lies on every tile that runs it."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with fusions."""
        return rows_fused(module, self.most_ops, plan.ipus), plan
