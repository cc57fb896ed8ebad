"""Collectives on tensors of a group's members, in storage form."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from hloipu_runtime.codelets.core.expression import region
from hloipu_runtime.kernels import collectives as kernels
from hloipu_runtime.kernels.core.monoids import Combiner
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.program import Array

Members = list[list[Array]]
"""Of each member, in group order, its operands or its results."""


def group_results(
    form: c.CollectiveForm, group: Sequence[int], types: Sequence[str], members: Members
) -> Members:
    """Return the members' results from their operands; `types` are those of the operands.

    The order of sums is the group's, whoever comes first.
    """
    everyone = [range(len(members))]
    if form.kind == c.ALL_TO_ALL and form.dimension == c.TUPLE_FORM:
        return kernels.all_to_all_tuple(members, everyone)
    if form.kind == c.RAGGED:
        return [[x] for x in kernels.ragged_all_to_all(members, everyone)]
    apply = _of_one_operand(form, group)
    columns = [
        apply(list(column), kind)
        for column, kind in zip(zip(*members, strict=True), types, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _of_one_operand(
    form: c.CollectiveForm, group: Sequence[int]
) -> Callable[[list[Array], str], list[Array]]:
    how = _combiner(form)

    def apply(operands: list[Array], kind: str) -> list[Array]:
        everyone = [range(len(operands))]
        match form.kind:
            case c.ALL_REDUCE:
                return kernels.all_reduce(operands, everyone, how, kind)
            case c.REDUCE_SCATTER:
                return kernels.reduce_scatter(operands, everyone, form.dimension, how, kind)
            case c.ALL_GATHER:
                return kernels.all_gather(operands, everyone, form.dimension)
            case c.ALL_TO_ALL:
                return kernels.all_to_all(operands, everyone, form.dimension)
            case c.BROADCAST:
                if len(operands) == 1 and not any(group[0] in x for x in form.groups):
                    return [np.zeros_like(operands[0])]
                return kernels.collective_broadcast(operands, everyone)
            case c.PERMUTE:
                places = {member: place for place, member in enumerate(group)}
                pairs = [(places[a], places[b]) for a, b in form.pairs if a in places]
                return kernels.collective_permute(operands, pairs)
            case _:
                raise ValueError(f"{form.kind} takes no operands")

    return apply


def _combiner(form: c.CollectiveForm) -> Combiner:
    if form.monoid or form.body is None:
        return cast(Combiner, form.monoid)
    return region(form.body)
