"""The IPUs of each stage: as asked, or one after the other."""

from collections.abc import Sequence

from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.plan.pipelining import device_map_text


def stage_ipus(
    asked: Sequence[tuple[int, ...]], branches: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the IPUs of each stage.

    `asked`: the device map, or nothing; `branches`: how many each stage is annotated with, 0 where
    it is not. A stage on one IPU does its branches in turn. Raises StagingError E0507 for a device
    map that does not fit the stages, E0561 for one that does not fit their branches.
    """
    found = tuple(asked)
    if not found:
        first, one_by_one = 0, []
        for count in branches:
            one_by_one.append(tuple(range(first, first + max(count, 1))))
            first += max(count, 1)
        return tuple(one_by_one)
    flat = {ipu for here in found for ipu in here}
    fits = len(found) == len(branches) and flat == set(range(len(flat)))
    if not fits or any(len(set(here)) != max(len(here), 1) for here in found):
        raise StagingError(
            "E0507",
            f"the device map {device_map_text(found)} does not fit {len(branches)} stages",
            hint="give an IPU for each stage, or several in brackets, numbered from 0 without gaps",
        )
    for stage, (here, count) in enumerate(zip(found, branches, strict=True)):
        if count and len(here) not in (1, count):
            raise StagingError(
                "E0561",
                f"the device map {device_map_text(found)} puts stage {stage} on {len(here)} IPUs, "
                f"and its ops are annotated with {count} branch{'es' if count > 1 else ''}",
                hint="give it an IPU for each branch, or one for all",
            )
    return found
