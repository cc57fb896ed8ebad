"""Results that are made in slices, one after the other, and put together as they come."""

from hloipu_compiler.codegen.builder import Builder
from hloipu_compiler.codegen.leaves import Held
from hloipu_compiler.codegen.placing import Placement
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.program.mapping import Sizes


def written(
    builder: Builder, into: Held | None, part: Held, low: int, dimension: int, result: Tensor
) -> Held:
    """Write a slice, from `low` on along a dimension, into the result, which begins as zeros.

    If each tile has a slice whole along the dimension it has the result so, too: nothing moves.
    """
    into = into or _filled(builder, part, dimension, result)
    high = low + part.shape[dimension]
    box = tuple((low, high) if d == dimension else (0, n) for d, n in enumerate(result.shape))
    shift = tuple(-low if d == dimension else 0 for d in range(len(result.shape)))
    return builder.assembled(
        result.element_type, result.shape, [(part, part.shape, box, shift)], into
    )


def resized(sizes: Sizes, dimension: int, size: int) -> Sizes:
    """Return sizes with one of them changed."""
    return (*sizes[:dimension], size, *sizes[dimension + 1 :])


def _filled(builder: Builder, part: Held, dimension: int, result: Tensor) -> Held:
    """Return zeros of the result's shape, on the tiles of a slice if that can be."""
    kind = result.element_type
    node = Node("constant", (), kind, (("value", _zero(kind)),))
    codelet = Elementwise(Expression((), (node,), (0,)), (), len(result.shape))
    lying = builder.variables[part.variable].mapping
    placement = None
    if lying.is_partition and lying.spans[dimension].axis < 0 and not lying.replicated_axes:
        labels = tuple((d, span) for d, span in enumerate(lying.spans) if span.axis >= 0)
        placement = Placement(lying.tiles, labels)
    return builder.compute(codelet, [], [(kind, result.shape)], placement=placement)[0]


def _zero(kind: str) -> str:
    return {"c": "0,0", "p": "false"}.get(kind[0], "0")
