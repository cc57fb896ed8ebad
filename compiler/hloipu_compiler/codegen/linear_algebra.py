"""Lowering of Cholesky decomposition and triangular solve: a batch over tiles."""

from collections.abc import Sequence

from hloipu_compiler.codegen.leaves import Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_compiler.codegen.views import compute_spread
from hloipu_runtime.codelets.linear_algebra import Cholesky, TriangularSolve


@lowers("cholesky")
def _cholesky(site: Site) -> Sequence[Leaf]:
    codelet = Cholesky(site.attributes.flag("lower"), site.shape.element_type.name)
    return compute_spread(site.builder, codelet, [site.held(0)], site.results)


@lowers("triangular-solve")
def _triangular_solve(site: Site) -> Sequence[Leaf]:
    read = site.attributes.flag
    codelet = TriangularSolve(
        read("left_side"),
        read("lower"),
        read("unit_diagonal"),
        site.attributes.text("transpose_a", "NO_TRANSPOSE"),
        site.shape.element_type.name,
    )
    return compute_spread(site.builder, codelet, [site.held(0), site.held(1)], site.results)
