"""Which IPUs of a system programs take, and what that costs them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.links import Flow, link_transfer
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled

CHAIN = """HloModule chain
ENTRY main {
  a = f32[512]{0} parameter(0)
  b = f32[512]{0} negate(a), sharding={maximal device=0}
  c = f32[512]{0} tanh(b), sharding={maximal device=1}
  d = f32[512]{0} negate(c), sharding={maximal device=2}
  ROOT e = f32[512]{0} tanh(d), sharding={maximal device=3}
}
"""


def chain(**options: Any) -> CompiledProgram:
    return hloipu.compile(CHAIN, target="tiny", cache=False, over_memory="allow", **options)


def copies(program: CompiledProgram) -> list[int]:
    return [
        step.spent.exchange.cycles
        for step in program.costs.steps
        if step.kind == "exchange" and len(step.ipus) == 2
    ]


@pytest.mark.parametrize(
    ("order", "hops_and_links"),
    [
        ("zigzag", [(1, 4), (2, 2), (1, 4)]),
        ("auto", [(1, 4), (2, 2), (1, 4)]),
        ("snake", [(1, 4), (1, 2), (1, 4)]),
        ("hoof", [(1, 2), (1, 4), (1, 2)]),
    ],
)
def test_copies_take_the_hops_between_the_places_of_their_ipus(
    order: str, hops_and_links: list[tuple[int, int]]
) -> None:
    # 2,048 bytes, a hop of 100 ns at 1 GHz; links of 1 GB/s, four along a rung, two along a rail.
    wanted = [100 * hops + 2_048 // links for hops, links in hops_and_links]
    assert copies(chain(selection_order=order)) == wanted


def test_ids_name_the_ipus_and_values_stay(tmp_path: Path) -> None:
    program = chain(ipu_ids=(25,))
    assert program.program.places == (4, 5, 6, 7)
    assert program.program.system_ipus == 16
    assert program.options["cut"][-1] == "takes IPUs 4,5,6,7 (device 25 of a system of 16)"
    apart = chain(ipu_ids=(0, 15, 8, 3))
    machine = apart.machine
    wanted = [
        link_transfer(machine, [Flow(a, b, 2_048)], 16).cycles
        for a, b in ((0, 15), (15, 8), (8, 3))
    ]
    assert copies(apart) == wanted
    a = np.linspace(-1, 1, 512, dtype=np.float32)
    (found,) = apart.run(a, mode="exact").outputs
    np.testing.assert_allclose(found, np.tanh(-np.tanh(-a)), rtol=2e-6)
    apart.save(tmp_path / "chain.ipux")
    assert hloipu.load(tmp_path / "chain.ipux").program.places == (0, 15, 8, 3)


def test_ids_are_filled_with_replicas_and_stages_snake_along_them() -> None:
    cut = Cut("mlp_sgd", 4, "grouped", 2)
    program = compiled(cut, ipu_ids=(29,), replicas=None)
    assert program.program.replicas == 2
    assert program.program.places == (8, 9, 11, 10, 12, 13, 15, 14)
    single = compiled(cut)
    assert single.program.places == (0, 1, 3, 2)
    assert_equal_to_jax(cut, single)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"ipu_ids": (31,)}, "E0554"),
        ({"ipu_ids": (16, 0)}, "E0554"),
        ({"ipu_ids": (24,), "ipus": 8}, "E0554"),
        ({"ipu_ids": (28,)}, "E0475"),
        ({"ipu_ids": (3,)}, "E0475"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(HloipuError) as told:
        chain(**options)
    assert told.value.code == code
