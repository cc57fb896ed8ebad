"""Lowering of dot products: blocks of rows and columns, the depth cut where tiles are left."""

from collections.abc import Sequence

from hloipu_compiler.codegen.leaves import Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.dot import Dot


@lowers("dot")
def _dot(site: Site) -> Sequence[Leaf]:
    attributes = site.attributes
    codelet = Dot(
        attributes.integers("lhs_batch_dims"),
        attributes.integers("rhs_batch_dims"),
        attributes.integers("lhs_contracting_dims"),
        attributes.integers("rhs_contracting_dims"),
        site.shape.element_type.name,
    )
    return site.builder.compute(codelet, [site.held(0), site.held(1)], site.results)
