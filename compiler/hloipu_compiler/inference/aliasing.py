"""`output_to_operand_aliasing` of fusions, custom calls and async starts.

Source: openxla/xla `xla/service/hlo_verifier.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.site import Site
from hloipu_compiler.ir.attributes import Alias
from hloipu_compiler.ir.shapes import BufferShape, Shape, compatible, subshape

_NAME = "output_to_operand_aliasing"


def check_aliasing(site: Site, result: Shape | None = None) -> None:
    """Check that each alias joins two existing places of the same shape.

    A buffer may alias its contents where arrays are pinned and unpinned.
    """
    written = site.attributes.get(_NAME)
    if not isinstance(written, tuple):
        return
    result_shape = site.declared if result is None else result
    for alias in written:
        if isinstance(alias, Alias) and result_shape is not None:
            _check_alias(site, alias, result_shape)


def _check_alias(site: Site, alias: Alias, result_shape: Shape) -> None:
    inside = 0 <= alias.parameter < len(site.operands)
    source = subshape(site.operands[alias.parameter], alias.parameter_index) if inside else None
    target = subshape(result_shape, alias.output_index)
    if source is None or target is None:
        raise faults.ALIASING(
            f"alias of result {list(alias.output_index)} with operand {alias.parameter} "
            f"{list(alias.parameter_index)}, which does not exist",
            expected=f"indices within {result_shape} and {len(site.operands)} operands",
            attribute=_NAME,
        )
    if not compatible(_contents(source), _contents(target)):
        raise faults.ALIASING(
            f"alias of result {target} with operand {source}",
            expected="equal shapes",
            operand=alias.parameter,
            attribute=_NAME,
        )


def _contents(shape: Shape) -> Shape:
    return shape.contents if isinstance(shape, BufferShape) else shape
