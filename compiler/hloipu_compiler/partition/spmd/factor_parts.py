"""Parts of the mesh along the factors of an op's dimension rule."""

from collections.abc import Iterable, Sequence

from hloipu_compiler.ir.factors import DimensionRule, FactorKind
from hloipu_compiler.partition.spmd.axes import DeviceAxes

Axes = tuple[int, ...]


def factor_places(rule: DimensionRule) -> list[list[tuple[int, int, int]]]:
    """Return for each factor the arrays, dimensions and places in them that have it."""
    places: list[list[tuple[int, int, int]]] = [[] for _ in rule.factors]
    for array, dimensions in enumerate((*rule.operands, *rule.results)):
        for d, numbers in enumerate(dimensions):
            for k, factor in enumerate(numbers):
                places[factor].append((array, d, k))
    return places


def parts_along(
    axes: DeviceAxes, rule: DimensionRule, arrays: Sequence[Sequence[Axes]]
) -> dict[tuple[int, int], Axes]:
    """Return the parts that each array has along each factor of a rule, where it has any.

    `arrays`: the parts of each dimension of operands and results. The keys are the number of the
    array and of the factor.
    """
    parts_by_factor: dict[tuple[int, int], Axes] = {}
    for array, dimensions in enumerate((*rule.operands, *rule.results)):
        for d, parts in enumerate(arrays[array]):
            if not parts:
                continue
            numbers = dimensions[d]
            if len(numbers) == 1:
                parts_by_factor[array, numbers[0]] = parts
                continue
            for number, along in _split(axes, rule, numbers, parts):
                parts_by_factor[array, number] = along
    return parts_by_factor


def _split(
    axes: DeviceAxes, rule: DimensionRule, numbers: Sequence[int], parts: Axes
) -> Iterable[tuple[int, Axes]]:
    """Yield the parts along each factor of a dimension; what cuts a factor unevenly ends it."""
    at = 0
    if rule.kind(numbers[0]) is FactorKind.PERMUTATION:
        yield numbers[0], parts
        return
    for k, number in enumerate(numbers):
        left, start = rule.factors[number].size, at
        while at < len(parts) and left > 1:
            size = axes.sizes[parts[at]]
            if left % size and k + 1 < len(numbers):
                break
            left //= size
            at += 1
        if at > start:
            yield number, parts[start:at]
        if left > 1 or at == len(parts):
            return
