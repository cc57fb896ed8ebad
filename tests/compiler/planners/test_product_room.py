"""What products may take by a memory plan: less where the moment lacks bytes, nothing else."""

from dataclasses import replace

import pytest

import hloipu
from hloipu_compiler.planners.product_room import product_rooms

TEXT = """HloModule two
ENTRY e {
  a = f16[4096,4096] parameter(0)
  b = f16[4096,4096] parameter(1)
  c = f16[64,4096] parameter(2)
  d = f16[4096,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f16[64,4096] dot(c, d), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (f16[4096,4096], f16[64,4096]) tuple(d, e)
}"""


def test_only_products_at_moments_that_lack_bytes_take_less() -> None:
    """By just what lacks, and the program of a machine with so little memory fits then."""
    program = hloipu.compile(TEXT, target="bow", cache=False, partials_type="f16")
    plan, lacking = program.memory_plan, 4096
    assert product_rooms(plan, {}) == {}
    (ipu,) = plan.ipus
    spare = plan.available_bytes - int(ipu.needed_bytes.max())
    slack = plan.machine.memory.prefetch_slack_bytes + spare + lacking
    memory = replace(plan.machine.memory, prefetch_slack_bytes=slack)
    scarce = replace(plan, machine=replace(plan.machine, memory=memory))
    assert not scarce.fits
    rooms = product_rooms(scarce, {})
    assert set(rooms) == {(0, "d")}
    # Where it took more than it was planned with, less than that is planned.
    assert product_rooms(scarce, {(0, "d"): 9000})[0, "d"] == pytest.approx(9000 - lacking, abs=64)
    peak = int(ipu.live.peak_point[ipu.needed_bytes.argmax()])
    own = sum(
        v.bytes_per_tile
        for v, ranges in zip(plan.program.variables, plan.liveness.ranges, strict=True)
        if v.origin == "d" and any(a <= peak <= b for a, b in ranges)
    )
    assert own - lacking - 64 <= rooms[0, "d"] <= own - lacking + 64
    # A buffer on the way, which no vertex touches, is in no plan.
    (a,) = (v for v in plan.program.variables if v.origin == "a")
    buffer = replace(a, origin="d")
    assert all(x.origin != "a" for x in plan.program.variables if x is not a)
    variables = tuple(buffer if v is a else v for v in plan.program.variables)
    renamed = replace(scarce, program=replace(plan.program, variables=variables))
    assert product_rooms(renamed, {}) == rooms
    again = hloipu.compile(
        TEXT,
        target="bow",
        cache=False,
        partials_type="f16",
        set={"memory.prefetch_slack_bytes": slack},
    )
    assert again.fits
    assert again.options.get("available_memory_proportion") is None
