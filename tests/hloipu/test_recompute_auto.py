"""Pipelines that do not fit as they are make values again, as much as it takes."""

from typing import Any

import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from tests.support.training_steps import STEPS

STEP = STEPS["transformer_adam"]
FIRST = STEP.state_count


def compiled(recompute: str, bytes_per_tile: int) -> CompiledProgram:
    given: dict[str, Any] = {"stages": 3, "micro_batches": 8, "feed": {"data": (FIRST, FIRST + 1)}}
    return hloipu.compile(
        STEP.text, target="tiny", set={"memory.bytes_per_tile": bytes_per_tile}, cache=False,
        over_memory="allow", recompute=recompute, **given,
    )  # fmt: skip


def needed(recompute: str) -> int:
    plan = compiled(recompute, 1 << 17).memory_plan
    return max(int(ipu.needed_bytes.max()) for ipu in plan.ipus)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("fitting", "fewer"), [("cheap", "none"), ("full", "cheap")])
def test_the_mildest_that_fits_is_taken(fitting: str, fewer: str) -> None:
    least, most = needed(fitting), needed(fewer)
    assert least < most
    made = compiled("auto", (least + most) // 2 & ~7)
    assert made.fits
    assert made.options["recompute"] == fitting
    assert not compiled("none", (least + most) // 2 & ~7).fits
