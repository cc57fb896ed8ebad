"""Collectives on lists of arrays, one per participant.

`groups` are lists of participant numbers (places in those lists). Values are combined in the order
in which a group names its members. A participant in no group gets zeros.
"""

from collections.abc import Sequence

import numpy as np

from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import Combiner, finish
from hloipu_runtime.kernels.scatter_rows import combine

Groups = Sequence[Sequence[int]]


def all_reduce(
    operands: Sequence[Array], groups: Groups, combiner: Combiner, element_type: str
) -> list[Array]:
    """Give each member its group's values combined elementwise, first member first.

    A named monoid on bf16 runs in float32 and is rounded once, on every other narrow float it is
    rounded after each step: as on XLA:CPU (jaxlib 0.10.2). A region rounds as it is written.
    """
    step_type = "f32" if element_type == "bf16" else element_type
    results = [np.zeros_like(x) for x in operands]
    for group in groups:
        total = operands[group[0]]
        for member in group[1:]:
            total = combine([total], [operands[member]], combiner, [step_type])[0]
        total = finish(total, element_type) if step_type != element_type else total
        for member in group:
            results[member] = total
    return results


def reduce_scatter(
    operands: Sequence[Array], groups: Groups, dimension: int, combiner: Combiner, element_type: str
) -> list[Array]:
    """Reduce over each group; member i keeps the i-th of equal parts along `dimension`."""
    reduced = all_reduce(operands, groups, combiner, element_type)
    results = [np.zeros_like(x) for x in operands]
    for group in groups:
        parts = np.split(reduced[group[0]], len(group), axis=dimension)
        for member, part in zip(group, parts, strict=True):
            results[member] = part
    return results


def all_gather(operands: Sequence[Array], groups: Groups, dimension: int) -> list[Array]:
    """Give each member its group's arrays joined along `dimension`, in group order."""
    results = [np.zeros_like(x) for x in operands]
    for group in groups:
        joined = np.concatenate([operands[member] for member in group], axis=dimension)
        for member in group:
            results[member] = joined
    return results


def all_to_all(operands: Sequence[Array], groups: Groups, dimension: int) -> list[Array]:
    """Array form: member i gets the i-th part along `dimension` of every member, joined there."""
    results = [np.zeros_like(x) for x in operands]
    for group in groups:
        parts = [np.split(operands[member], len(group), axis=dimension) for member in group]
        for place, member in enumerate(group):
            results[member] = np.concatenate([p[place] for p in parts], axis=dimension)
    return results


def all_to_all_tuple(operands: Sequence[Sequence[Array]], groups: Groups) -> list[list[Array]]:
    """Tuple form: member i's j-th result is member j's i-th operand."""
    results = [[np.zeros_like(x) for x in mine] for mine in operands]
    for group in groups:
        for place, member in enumerate(group):
            results[member] = [operands[other][place] for other in group]
    return results


def collective_permute(
    operands: Sequence[Array], source_target_pairs: Sequence[tuple[int, int]]
) -> list[Array]:
    """Send each source's array to its target; a participant that is no target gets zeros."""
    results = [np.zeros_like(x) for x in operands]
    for source, target in source_target_pairs:
        results[target] = operands[source]
    return results


def collective_broadcast(operands: Sequence[Array], groups: Groups) -> list[Array]:
    """Give each member the array of its group's first; participants in no group get zeros."""
    results = [np.zeros_like(x) for x in operands]
    for group in groups:
        for member in group:
            results[member] = operands[group[0]]
    return results


def ragged_all_to_all(members: Sequence[Sequence[Array]], groups: Groups) -> list[Array]:
    """Send row ranges of each member's input into the outputs of its group.

    A member's operands: input, output, where its ranges begin in the input, their rows, where they
    begin in their receivers' outputs, and how many rows it takes of each sender: ranges for the
    first member of the group come first, equally many for each. Rows not written keep the values
    of the output. Source: jax-ml/jax: jax/_src/lax/parallel.py (ragged_all_to_all). Raises
    UsageError E6011 for rows that are not there, or that the receiver does not expect.
    """
    results = [operands[1].copy() for operands in members]
    for group in groups:
        for number, sender in enumerate(group):
            rows, _, *ranges, _ = members[sender]
            starts, sizes, places = (operand.ravel().tolist() for operand in ranges)
            runs, more = divmod(len(sizes), len(group))
            if more:
                fault = f"{len(sizes)} ranges go to a group of {len(group)}"
                raise UsageError("E6011", fault, hint="give equally many for each member")
            for update, (start, count, place) in enumerate(zip(starts, sizes, places, strict=True)):
                receiver = group[update // runs]
                taken = int(members[receiver][5].ravel()[number * runs + update % runs])
                into = results[receiver]
                fits = 0 <= start <= len(rows) - count and 0 <= place <= len(into) - count
                if taken != count or (count and not (count > 0 and fits)):
                    raise UsageError(
                        "E6011",
                        f"member {sender} sends rows {start} to {start + count} of {len(rows)} to "
                        f"rows {place} to {place + count} of {len(into)} of member {receiver}, "
                        f"which takes {taken}",
                        hint="give offsets and sizes within the arrays; what one member sends is "
                        "what the other takes",
                    )
                into[place : place + count] = rows[start : start + count]
    return results
