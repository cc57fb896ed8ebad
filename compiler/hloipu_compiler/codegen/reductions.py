"""Lowering of reductions: rows alone where there are many, else partials and their combination."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from hloipu_compiler.codegen.contractions import partial_type
from hloipu_compiler.codegen.leaves import Held, Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_runtime.codelets.expression import monoid_of
from hloipu_runtime.codelets.reduce import Reduce

_PARTIAL_ELEMENTS = 2048
"""From here on elements on one tile are worth a second stage, its exchange and sync (assumed)."""

_FEWEST = 32
"""Least elements of a piece."""

_FEWEST_TO_ONE = 4
"""Elements that a tile must reduce to one for a stage of its own (assumed)."""


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
    """Compute a reduction; operands are arrays, then init scalars.

    Where arrays lie split along reduced dimensions, each tile first reduces what it has; long
    reductions to few elements are cut into pieces for more tiles. What is left is reduced alike.
    """
    results = [(kind, _kept(codelet, operands[0].shape)) for kind in codelet.element_types]
    arrays = operands[: len(operands) // 2]
    inits = operands[len(operands) // 2 :]
    cut = _cut(site, codelet, arrays[0])
    if cut is None:
        return site.builder.compute(codelet, operands, results)
    kinds = codelet.element_types
    if codelet.monoid in ("add", "multiply"):
        kinds = tuple(map(partial_type, kinds))
    first = replace(codelet, dimensions=cut.dimensions, part=cut.part, element_types=kinds)
    kept = [d for d in range(len(arrays[0].shape)) if d not in cut.dimensions]
    pieces = -(-arrays[0].shape[cut.dimensions[0]] // cut.part)
    shape = (pieces, *(arrays[0].shape[d] for d in kept))
    partials = site.builder.compute(first, arrays, [(kind, shape) for kind in kinds])
    left = (0, *(1 + n for n, d in enumerate(kept) if d in codelet.dimensions))
    second = replace(codelet, dimensions=left)
    return reduce(site, second, [*partials, *inits])


class _Cut(NamedTuple):
    """What a first stage reduces: the first dimension in pieces, the others whole."""

    dimensions: tuple[int, ...]
    part: int


def _kept(codelet: Reduce, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d not in codelet.dimensions)


def _cut(site: Site, codelet: Reduce, array: Held) -> _Cut | None:
    """Return the first of two stages; None where one stage does."""
    builder = site.builder
    elements = prod(array.shape)
    if not codelet.dimensions or not elements:
        return None
    mapping = builder.variables[array.variable].mapping
    split = [d for d in codelet.dimensions if mapping.spans[d].axis >= 0]
    if split and mapping.is_partition and not mapping.replicated_axes:
        # The array lies in pieces already: each tile reduces its own, if that leaves much less.
        best = max(split, key=lambda d: mapping.spans[d].size)
        whole = [d for d in codelet.dimensions if mapping.spans[d].axis < 0]
        shrunk = mapping.spans[best].size * prod(array.shape[d] for d in whole)
        if shrunk >= _FEWEST_TO_ONE and elements > _FEWEST * _FEWEST_TO_ONE:
            return _Cut((best, *whole), mapping.spans[best].size)
    busy = min(
        builder.tile_count, max(1, elements // prod(array.shape[d] for d in codelet.dimensions))
    )
    load = elements // busy
    if load < _PARTIAL_ELEMENTS or 2 * busy > builder.tile_count:
        return None
    longest = max(codelet.dimensions, key=lambda d: array.shape[d])
    size = array.shape[longest]
    pieces = min(builder.tile_count // busy, max(1, load // _FEWEST), size)
    if pieces < 2:
        return None
    others = tuple(d for d in codelet.dimensions if d != longest)
    return _Cut((longest, *others), -(-size // pieces))
