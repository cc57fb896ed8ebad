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
    ("options", "places", "said"),
    [
        ({"device_map": [0, 2]}, (0, 2), "takes IPUs 0,2"),
        ({"device_map": [3, 1], "selection_order": "snake"}, (1, 2), "takes IPUs 1,2"),
        ({"device_map": [1, 1]}, (1,), "takes IPU 1"),
        ({"device_map": [0, 2], "replicas": 2}, (0, 2, 4, 6), "takes IPUs 0,2 | 4,6"),
        ({"device_map": [0, 3], "ipus": 8, "replicas": None}, (0, 3, 4, 7), "takes IPUs 0,3 | 4,7"),
        ({"device_map": [0, 2], "ipu_ids": (27,)}, (12, 14),
         "takes IPUs 12,14 (device 27 of a system of 16)"),
    ],
)  # fmt: skip
def test_ipus_that_a_device_map_leaves_out_are_idle(
    options: dict[str, Any], places: tuple[int, ...], said: str
) -> None:
    program = compiled(Cut("mlp_sgd", 2, "grouped", 2), **options)
    assert program.program.ipus == len(set(options["device_map"]))
    assert program.program.places == places
    assert any("do nothing" in x or "does nothing" in x for x in program.options["cut"])
    assert program.options["cut"][-1] == said


def test_where_a_device_map_puts_stages_is_what_their_copies_cost() -> None:
    def exchanged(device_map: list[int]) -> int:
        program = compiled(Cut("mlp_sgd", 2, "grouped", 2), device_map=device_map)
        assert_equal_to_jax(Cut("mlp_sgd", 2, "grouped", 2), program)
        return sum(
            step.spent.exchange.cycles
            for step in program.costs.steps
            if step.kind in ("exchange", "slots") and len(step.ipus) == 2
        )

    # A rung has four links, a rail two, and 0 and 3 are two hops apart.
    assert exchanged([0, 1]) < exchanged([0, 2]) < exchanged([0, 3])


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
