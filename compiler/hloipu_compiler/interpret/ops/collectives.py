"""Evaluation of collectives: members of a group meet and compute together."""

from collections.abc import Callable, Sequence

import numpy as np

from hloipu_compiler.interpret.ops.reductions import combiner
from hloipu_compiler.interpret.planning.meeting import group_of, is_member, permutation_of
from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Site, leaf_count, lowers
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels import collectives as kernels

Compute = Callable[[list[list[Array]]], list[list[Array]]]
"""From the members' operands to the members' results, both in group order."""


def _meets(site: Site, compute: Compute) -> Action:
    """Return an action that brings operands to the group's meeting and takes results home."""
    group = group_of(site)
    me = group.index(site.effects.participant)
    meeting, name = site.effects.meeting, site.instruction.name
    if len(group) == 1 or meeting is None:
        return lambda x: compute([list(x)])[0]
    return lambda x: meeting.attend(name, tuple(group), me, list(x), compute)


def _each_operand(apply: Callable[[list[Array], int], list[Array]]) -> Compute:
    def compute(members: list[list[Array]]) -> list[list[Array]]:
        columns = [apply(list(column), i) for i, column in enumerate(zip(*members, strict=True))]
        return [list(row) for row in zip(*columns, strict=True)]

    return compute


def _all(members: Sequence[object]) -> list[range]:
    return [range(len(members))]


@lowers("all-reduce", "all-reduce-start")
def _all_reduce(site: Site) -> Action:
    how, types = combiner(site), [site.element_type(i) for i in range(len(site.operand_shapes))]
    return _meets(
        site,
        _each_operand(lambda x, i: kernels.all_reduce(x, _all(x), how, types[i])),  # type: ignore[arg-type]
    )


@lowers("reduce-scatter")
def _reduce_scatter(site: Site) -> Action:
    how, types = combiner(site), [site.element_type(i) for i in range(len(site.operand_shapes))]
    (dimension,) = site.attributes.integers("dimensions")
    return _meets(
        site,
        _each_operand(
            lambda x, i: kernels.reduce_scatter(x, _all(x), dimension, how, types[i])  # type: ignore[arg-type]
        ),
    )


@lowers("all-gather")
def _all_gather(site: Site) -> Action:
    (dimension,) = site.attributes.integers("dimensions")
    return _meets(site, _each_operand(lambda x, _: kernels.all_gather(x, _all(x), dimension)))


@lowers("all-gather-start")
def _all_gather_start(site: Site) -> Action:
    """Return (operands, results)."""
    gather = _all_gather(site)
    return lambda x: [*x, *gather(x)]


@lowers("all-to-all")
def _all_to_all(site: Site) -> Action:
    dimensions = site.attributes.integers("dimensions")
    if isinstance(site.instruction.shape, TupleShape) and not dimensions:
        return _meets(site, lambda members: kernels.all_to_all_tuple(members, _all(members)))
    dimension = dimensions[0] if dimensions else 0
    return _meets(site, _each_operand(lambda x, _: kernels.all_to_all(x, _all(x), dimension)))


@lowers("ragged-all-to-all")
def _ragged_all_to_all(site: Site) -> Action:
    return _meets(site, lambda x: [[y] for y in kernels.ragged_all_to_all(x, _all(x))])


@lowers("collective-broadcast")
def _collective_broadcast(site: Site) -> Action:
    _refuse(site, "has_dynamic_root", site.attributes.flag("has_dynamic_root"))
    if not is_member(site):
        return lambda x: [np.zeros_like(value) for value in x]
    return _meets(site, _each_operand(lambda x, _: kernels.collective_broadcast(x, _all(x))))


@lowers("collective-permute")
def _collective_permute(site: Site) -> Action:
    _refuse(site, "slice_sizes", "slice_sizes" in site.attributes)
    pairs = permutation_of(site)
    return _meets(site, _each_operand(lambda x, _: kernels.collective_permute(x, pairs)))


def _refuse(site: Site, attribute: str, present: bool) -> None:
    """Refuse the forms whose meaning only a device's own runtime defines."""
    if present:
        raise UnsupportedError(
            "E0463",
            f"{site.instruction.opcode} {site.instruction.name!r} with {attribute} has no rule",
            hint=f"write it without {attribute}",
        )


@lowers("collective-permute-start")
def _collective_permute_start(site: Site) -> Action:
    """Return (operand, result, contexts…)."""
    permute = _collective_permute(site)
    wanted = leaf_count(site.instruction.shape)

    def run(x: list[Array]) -> list[Array]:
        value = [*x, *permute(list(x))]
        return [*value, *value[:1] * (wanted - len(value))]

    return run


@lowers("all-reduce-done")
def _all_reduce_done(site: Site) -> Action:
    return lambda x: x


@lowers("all-gather-done", "collective-permute-done")
def _second_of_start(site: Site) -> Action:
    shape = site.operand_shapes[0]
    first = leaf_count(shape.elements[0]) if isinstance(shape, TupleShape) else 0
    count = leaf_count(site.instruction.shape)
    return lambda x: x[first : first + count]
