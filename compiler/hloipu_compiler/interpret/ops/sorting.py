"""Evaluation of sort, topk and scan."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hloipu_compiler.interpret.planning.comparators import ComparatorKey, comparator_keys
from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Region, Site, array_leaves, lowers
from hloipu_runtime.kernels.scan import scan
from hloipu_runtime.kernels.sorting import SortKey, sort
from hloipu_runtime.kernels.topk import topk


@lowers("sort")
def _sort(site: Site) -> Action:
    dimensions = site.attributes.integers("dimensions")
    dimension = dimensions[0] if dimensions else len(site.sizes(0)) - 1
    name = site.attributes.text("to_apply")
    if not name:  # dumps before 2019: ascending by the first operand
        keys: Sequence[ComparatorKey] | None = [ComparatorKey(0, False, "ieee", None)]
    else:
        keys = comparator_keys(site.module, name)
    if keys is None:
        region = site.region_of(name)
        return lambda x: sort(x, dimension, lambda *pairs: region(*pairs)[0])
    derived = [key for key in keys if key.value is not None]
    if not derived:
        plain = [SortKey(key.operand, key.descending, key.order) for key in keys]
        return lambda x: sort(x, dimension, plain)
    return _sort_by_derived_keys(site, dimension, keys)


def _sort_by_derived_keys(site: Site, dimension: int, keys: Sequence[ComparatorKey]) -> Action:
    """Compute each key's value for all elements at once, and sort it along with the operands."""
    arrays = len(site.operand_shapes)
    functions = [_key_function(site, key) for key in keys]
    sort_keys = [
        SortKey(arrays + number, key.descending, key.order) for number, key in enumerate(keys)
    ]

    def run(x: list[Array]) -> list[Array]:
        values = [
            function(*(operand for operand in x for _ in range(2)))[0] for function in functions
        ]
        return sort([*x, *values], dimension, sort_keys)[:arrays]

    return run


def _key_function(site: Site, key: ComparatorKey) -> Region:
    """Return the comparator cut off at a key's value."""
    comparator = site.module.computation[site.attributes.text("to_apply")]
    position = key.value if key.value is not None else comparator.parameters[2 * key.operand]
    return site.region_at(replace(comparator, root=position, name=f"{comparator.name}@{position}"))


@lowers("topk")
def _topk(site: Site) -> Action:
    k, largest = site.attributes.integer("k"), site.attributes.flag("largest", True)
    return lambda x: topk(x[0], k, largest=largest)


@lowers("scan")
def _scan(site: Site) -> Action:
    """Run `to_apply(inputs…, carries…) -> (outputs…, carries…)` along one dimension."""
    (dimension,) = site.attributes.integers("dimensions")
    carries = site.attributes.integer("num_carries")
    inputs = len(site.operand_shapes) - carries
    plan = site.plan_of(site.attributes.text("to_apply"))
    leaves = array_leaves(site.instruction.shape)
    stacked = leaves[: len(leaves) - carries]
    outputs = [(leaf.dimensions, np.dtype(leaf.element_type.storage)) for leaf in stacked]
    length = site.sizes(0)[dimension] if inputs else 0
    reverse = site.attributes.flag("is_reverse")

    def run(x: list[Array]) -> list[Array]:
        stacked_outputs, last = scan(
            x[:inputs], x[inputs:], dimension, lambda *a: plan.run(list(a)), outputs,
            length=length, is_reverse=reverse,
        )  # fmt: skip
        return [*stacked_outputs, *last]

    return run
