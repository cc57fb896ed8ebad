"""Axes of sweeps: what texts and values mean, what is refused, and which points there are."""

from collections.abc import Callable
from typing import Any

import pytest

from hloipu.sweeping.axes import (
    Axis,
    axis_of,
    axis_of_text,
    checked_axes,
    combinations,
    options_at,
    points_of,
)
from hloipu_runtime.errors import HloipuError

READ = {
    "target=gc200,bow": ("target", "gc200 bow"),
    "stages=default,1..3": ("stages", "default 1 2 3"),
    "micro-batches=8..64+24": ("micro_batches", "8 32 56"),
    "set.bytes_per_tile=1024..5000*2": ("set.bytes_per_tile", "1024 2048 4096"),
    "device_map=0,1;1,0": ("device_map", "0,1 1,0"),
    "passes=front,fuse-elementwise;default": ("passes", "front,fuse-elementwise default"),
    "--hoist=all , none": ("hoist", "all none"),
    "shard-optimizer=on,off": ("shard_optimizer", "true false"),
    "batch=8,16": ("batch", "8 16"),
    "dtype=f32,bf16": ("dtype", "f32 bf16"),
    "role=w=weight;w=data": ("role", "w=weight w=data"),
}


@pytest.mark.parametrize("text", READ)
def test_axes_are_read(text: str) -> None:
    axis = axis_of_text(text)
    assert (axis.name, " ".join(axis.values)) == READ[text]


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "no option": ("E3190", lambda: axis_of_text("stagse=1,2")),
    "no values": ("E3190", lambda: axis_of_text("stages")),
    "empty": ("E3190", lambda: axis_of_text("=")),
    "of run alone": ("E3190", lambda: axis_of_text("seed=1,2")),
    "set without a key": ("E3190", lambda: axis_of_text("set=a=1")),
    "of another kind": ("E3011", lambda: axis_of_text("stages=two")),
    "none": ("E3011", lambda: axis_of_text("stages=1,,2")),
    "half a batch": ("E3011", lambda: axis_of("batch", [0.5])),
    "a huge batch": ("E3011", lambda: axis_of("batch", [2**40])),
    "another type": ("E3011", lambda: axis_of_text("dtype=f8e5m2")),
    "backwards": ("E3190", lambda: axis_of_text("stages=8..1")),
    "without end": ("E3190", lambda: axis_of_text("stages=1..8*1")),
    "a long range": ("E3190", lambda: axis_of_text("set.bytes_per_tile=0..99999999999")),
    "twice": ("E3190", lambda: axis_of_text("stages=2,1..3")),
    "a text as list": ("E3190", lambda: axis_of("stages", "12")),
    "two axes": ("E3190", lambda: checked_axes([axis_of("set.a", [1]), axis_of("set.x.a", [2])])),
    "a large grid": ("E5019", lambda: next(points_of(_large(3), None, 0))),
    "too large to draw": ("E5019", lambda: checked_axes(_large(6))),
}


def _large(count: int) -> list[Axis]:
    return [axis_of(f"set.k{n}", range(5000)) for n in range(count)]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_axis_is_refused(name: str) -> None:
    code, call = REFUSED[name]
    with pytest.raises(HloipuError) as caught:
        call()
    assert caught.value.code == code


def test_a_grid_has_each_combination_once_in_order() -> None:
    axes = [axis_of("target", ["tiny", "bow"]), axis_of("stages", [1, 2, 3])]
    points = list(points_of(axes, None, 0))
    wanted = [{"target": t, "stages": s} for t in ("tiny", "bow") for s in "123"]
    assert points == wanted


def test_drawn_points_differ_and_come_again_by_their_seed() -> None:
    axes = _large(4)
    assert combinations(axes) == 5000**4
    drawn = [tuple(point.values()) for point in points_of(axes, 200, 7)]
    assert len(set(drawn)) == 200
    assert drawn == [tuple(point.values()) for point in points_of(axes, 200, 7)]
    assert drawn != [tuple(point.values()) for point in points_of(axes, 200, 8)]


def test_points_change_the_options_that_all_share() -> None:
    base = {"set": (("chip.tiles_per_ipu", "8"), ("bytes_per_tile", "9")), "role": ["w=weight"]}
    point = {"set.tiles_per_ipu": "4", "role": "x=data", "stages": "2", "hoist": "default"}
    assert options_at(base, {**point, "batch": "3"}) == {
        "set": (("bytes_per_tile", "9"), ("tiles_per_ipu", "4")),
        "role": (("w", "weight"), ("x", "data")),
        "stages": 2,
    }
