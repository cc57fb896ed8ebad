"""Lowering of ops that see the same bits, or the same sizes, differently."""

from collections.abc import Sequence

from hloipu_compiler.lowering.core.context import Site, lowers
from hloipu_compiler.lowering.core.errors import CodegenError
from hloipu_compiler.lowering.core.values import Leaf, Scalar
from hloipu_compiler.lowering.ops.elementwise import apply
from hloipu_runtime.codelets.core.expression_form import Node
from hloipu_runtime.codelets.ops.reshape import BitcastConvert


@lowers("bitcast-convert")
def _bitcast_convert(site: Site) -> Sequence[Leaf]:
    source, target = site.operand_shape(0), site.shape
    kinds = source.element_type.name, target.element_type.name
    if source.dimensions == target.dimensions and source.rank:
        node = Node("bitcast-convert", (), kinds[1])
        return [apply(site, node, [site.leaf(0)], site.dying)]
    return site.builder.compute(BitcastConvert(*kinds), [site.held(0)], site.results)


@lowers("get-dimension-size")
def _get_dimension_size(site: Site) -> Sequence[Leaf]:
    """Sizes are static here: the run-time size is the size."""
    (dimension,) = site.attributes.integers("dimensions")
    return [Scalar("s32", str(site.operand_shape(0).dimensions[dimension]))]


@lowers("set-dimension-size")
def _set_dimension_size(site: Site) -> Sequence[Leaf]:
    """Keep the value where the size set is the whole size; a shorter one is a dynamic shape."""
    (dimension,) = site.attributes.integers("dimensions")
    whole, size, name = site.shape.dimensions[dimension], site.leaf(1), site.instruction.name
    if isinstance(size, Scalar) and size.text == str(whole):
        return site.operands[0]
    found = size.text if isinstance(size, Scalar) else "a size that is known at run time only"
    raise CodegenError(
        "E0401",
        f"{name!r} sets a dimension of {whole} to {found}",
        hint="pad to the bound and mask instead: shapes are static here",
    )
