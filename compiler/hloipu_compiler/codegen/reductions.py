"""Lowering of reductions: rows alone where there are many, else partials and their combination."""

from collections.abc import Sequence

from hloipu_compiler.codegen.leaves import Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.expression import monoid_of
from hloipu_runtime.codelets.reduce import Reduce


@lowers("reduce")
def _reduce(site: Site) -> Sequence[Leaf]:
    dimensions = site.attributes.integers("dimensions")
    body = site.expression(site.attributes.called[0])
    monoid = monoid_of(body) if len(site.operands) == 2 else None
    kinds = tuple(kind for kind, _ in site.results)
    operands = [site.held(n) for n in range(len(site.operands))]
    codelet = Reduce(dimensions, monoid or "", None if monoid else body, kinds)
    return site.builder.compute(codelet, operands, site.results)
