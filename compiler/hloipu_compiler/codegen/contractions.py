"""Lowering of dot products: blocks of rows and columns, the depth cut where that is cheaper."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.codegen.dot_grids import dot_grid
from hloipu_compiler.codegen.leaves import Held, Leaf, Scalar
from hloipu_compiler.codegen.placing import gathered, moved
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.dot import Dot
from hloipu_runtime.codelets.reduce import Reduce
from hloipu_runtime.element_types import ELEMENT_TYPES


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
    return [dot(site, codelet, site.held(0), site.held(1))]


def dot(site: Site, codelet: Dot, lhs: Held, rhs: Held) -> Held:
    """Compute a dot product on the cheapest grid found."""
    builder = site.builder
    kind, shape = site.results[0]
    tensors = [Tensor(x.element_type, x.shape) for x in (lhs, rhs)]
    partial_kind = partial_type(kind)
    plan = dot_grid(builder.machine, codelet, *tensors, Tensor(kind, shape), partial_kind)
    placement = moved(
        plan.placement, builder.first_tile(plan.placement.tiles.count), builder.tile_count
    )
    if not plan.part:
        return builder.compute(codelet, [lhs, rhs], [(kind, shape)], placement=placement)[0]
    cut = replace(codelet, part=plan.part, element_type=partial_kind)
    depth = lhs.shape[codelet.lhs_contracting[0]]
    partial_shape = (-(-depth // plan.part), *shape)
    (partials,) = builder.compute(
        cut, [lhs, rhs], [(partial_kind, partial_shape)], placement=placement
    )
    return combined(site, partials, kind, shape)


def combined(site: Site, partials: Held, kind: str, shape: tuple[int, ...]) -> Held:
    """Add partial sums along their leading dimension."""
    zero = site.builder.scalar(Scalar(partials.element_type, zero_text(partials.element_type)))
    add = Reduce((0,), "add", None, (kind,))
    placement = gathered(site.builder.variables[partials.variable].mapping, shape)
    return site.builder.compute(add, [partials, zero], [(kind, shape)], placement=placement)[0]


def partial_type(kind: str) -> str:
    """Return the type of partial sums: f32 for every narrower float."""
    element = ELEMENT_TYPES[kind]
    return "f32" if element.is_float and element.bits < 32 else kind


def zero_text(kind: str) -> str:
    """Return the exact text of zero; minus zero for floats, which changes no sum."""
    element = ELEMENT_TYPES[kind]
    if element.is_complex:
        return "-0x0.0p+0,-0x0.0p+0"
    return "-0x0.0p+0" if element.is_float else "false" if kind == "pred" else "0"
