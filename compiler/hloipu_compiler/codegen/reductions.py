"""Lowering of reductions: rows alone where there are many, else partials and their combination."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from hloipu_compiler.codegen.contractions import partial_type
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.expression import monoid_of
from hloipu_runtime.codelets.reduce import Reduce

_PARTIAL_ELEMENTS = 2048
"""From here on elements on one tile are worth a second stage, its exchange and sync (assumed)."""

_FEWEST = 32
"""Least elements of a piece."""


@lowers("reduce")
def _reduce(site: Site) -> Sequence[Leaf]:
    body = site.expression(site.attributes.called[0])
    monoid = monoid_of(body) if len(site.operands) == 2 else None
    kinds = tuple(kind for kind, _ in site.results)
    operands = [site.held(n) for n in range(len(site.operands))]
    codelet = Reduce(
        site.attributes.integers("dimensions"), monoid or "", None if monoid else body, kinds
    )
    return reduce(site, codelet, operands)


def reduce(site: Site, codelet: Reduce, operands: Sequence[Held]) -> list[Held]:
    """Compute a reduction; operands are arrays, then init scalars."""
    arrays = operands[: len(operands) // 2]
    inits = operands[len(operands) // 2 :]
    dimension, part = _cut(site, codelet, arrays[0])
    if not part:
        return site.builder.compute(codelet, operands, site.results)
    others = tuple(d for d in codelet.dimensions if d != dimension)
    kinds = codelet.element_types
    if codelet.monoid in ("add", "multiply"):
        kinds = tuple(map(partial_type, kinds))
    first = replace(codelet, dimensions=(dimension, *others), part=part, element_types=kinds)
    pieces = -(-arrays[0].shape[dimension] // part)
    shape = (pieces, *site.results[0][1])
    partials = site.builder.compute(first, arrays, [(kind, shape) for kind in kinds])
    second = replace(codelet, dimensions=(0,))
    return site.builder.compute(second, [*partials, *inits], site.results)


def _cut(site: Site, codelet: Reduce, array: Held) -> tuple[int, int]:
    """Return the dimension to cut, and the elements of a piece; 0 pieces: no cut."""
    builder = site.builder
    if not codelet.dimensions or not prod(array.shape):
        return 0, 0
    mapping = builder.variables[array.variable].mapping
    split = [d for d in codelet.dimensions if mapping.spans[d].axis >= 0]
    kept = prod(site.results[0][1])
    busy = min(builder.tile_count, max(1, kept))
    load = prod(array.shape) // busy
    if len(split) == 1 and mapping.is_partition and not mapping.replicated_axes:
        span = mapping.spans[split[0]]
        # The operand lies in pieces already: take them, unless rows alone are little work.
        if load > _FEWEST and 2 * busy < builder.tile_count:
            return split[0], span.size
    if load < _PARTIAL_ELEMENTS or 2 * busy > builder.tile_count:
        return 0, 0
    longest = max(codelet.dimensions, key=lambda d: array.shape[d])
    size = array.shape[longest]
    inner = load // max(1, size)
    pieces = min(builder.tile_count // busy, max(1, size * max(1, inner) // _FEWEST), size)
    return (longest, -(-size // pieces)) if pieces > 1 else (0, 0)
