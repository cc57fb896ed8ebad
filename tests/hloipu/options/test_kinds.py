"""Each kind reads text, checks values, and writes what it reads."""

from pathlib import Path

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from hloipu.options.composite_kinds import (
    DeviceMap,
    DimensionAxes,
    Files,
    Integers,
    MeshAxes,
    Names,
    Number,
    Pairs,
    Settings,
)
from hloipu.options.kinds import Choice, Flag, Integer, Kind, Location, Proportion, Size, Target

SIZE = Size(2**50)
ROLES = Pairs("PARAMETER", Choice(("weight", "data")))
FEEDS = Pairs("NAME", Integers(0, 100))
SETTINGS = Settings("KEY", Number())
OF_JAX = (("data",), (), ("a", "b"), ("?",))

READ = [
    (Kind(), "a,b{k=v}", "a,b{k=v}"),
    (Location(), "x/y", "x/y"),
    (Target(), "gc200", "gc200"),
    (Choice(("on", "off")), "on", "on"),
    (Integer(-5, 5), "-5", -5),
    (Integer(0, 2_000), "1_000", 1000),
    (Proportion(), ".25", 0.25),
    (Proportion(), "1e-1", 0.1),
    (Flag(), "True", True),
    (Flag(), "0", False),
    (SIZE, "7", 7),
    (SIZE, "64MiB", 64 * 1024 * 1024),
    (SIZE, "1.5GiB", 1_610_612_736),
    (SIZE, "2 GB", 2_000_000_000),
    (SIZE, "3kB", 3000),
    (Integers(0, 9), "2,0, 3", (2, 0, 3)),
    (DeviceMap(), "0,1,1,2", (0, 1, 1, 2)),
    (DeviceMap(), "0, [1, 2], 3", (0, (1, 2), 3)),
    (DeviceMap(), "[4]", ((4,),)),
    (Names(), "loss", ("loss",)),
    (Files(), "a/b.py", ("a/b.py",)),
    (ROLES, "0=weight", (("0", "weight"),)),
    (FEEDS, "data=2,3", (("data", (2, 3)),)),
    (SETTINGS, "chip.tiles_per_ipu=64", (("chip.tiles_per_ipu", "64"),)),
    (MeshAxes(), "data=2, model=4", (("data", 2), ("model", 4))),
    (MeshAxes(), "auto", "auto"),
    (DimensionAxes(), "data,-,model+rest?", (("data",), (), ("model", "rest", "?"))),
    (DimensionAxes(), "?", (("?",),)),
    (DimensionAxes(), "", ()),
]

NOT_READ = [
    (Kind(), ""),
    (Kind(), "  "),
    (Kind(), "a\x00b"),
    (Kind(), "x" * 70_000),
    (Choice(("on", "off")), "On"),
    (Integer(0, 5), "6"),
    (Integer(0, 5), "0x1"),
    (Integer(0, 5), "\u0661"),
    (Integer(0, 5), ""),
    (Integer(0, 5), "1" * 10_000),
    (Proportion(), "0"),
    (Proportion(), "1.01"),
    (Proportion(), "nan"),
    (Flag(), "yes please"),
    (SIZE, "64 mib"),
    (SIZE, "1.5"),
    (SIZE, "0.1KiB"),
    (SIZE, "-1"),
    (SIZE, "2PiB"),
    (SIZE, "2048TiB"),
    (Integers(0, 9), "2,2"),
    (Integers(0, 9), "2,"),
    (Integers(0, 9), ""),
    (DeviceMap(), "0,[1,2"),
    (DeviceMap(), "0,[[1]]"),
    (DeviceMap(), "0;1"),
    (DeviceMap(), ""),
    (ROLES, "weight"),
    (ROLES, "=weight"),
    (ROLES, "0=wight"),
    (FEEDS, "data="),
    (SETTINGS, "tiles_per_ipu=many"),
    (MeshAxes(), "data"),
    (MeshAxes(), "data=0"),
    (MeshAxes(), "data=2,data=4"),
    (MeshAxes(), "a+b=2"),
    (DimensionAxes(), "a??"),
    (DimensionAxes(), "a+"),
]


@pytest.mark.parametrize(("kind", "text", "value"), READ)
def test_text_is_read(kind: Kind, text: str, value: object) -> None:
    assert kind.read(text) == value
    assert kind.check(value) == value
    assert kind.read(kind.write(value)) == value


@pytest.mark.parametrize(("kind", "text"), NOT_READ)
def test_other_text_is_not(kind: Kind, text: str) -> None:
    assert kind.read(text) is None


CHECKED = [
    (Integer(0, 9), np.int64(4), 4),
    (Proportion(), np.float32(0.5), 0.5),
    (Proportion(), 1, 1.0),
    (SIZE, "64MiB", 2**26),
    (Location(), Path("a") / "b", "a/b"),
    (Integers(0, 9), [1, 2], (1, 2)),
    (Integers(0, 9), 3, (3,)),
    (DeviceMap(), [0, [1, 2], 3], (0, (1, 2), 3)),
    (DeviceMap(), "0, [1, 2],3", (0, (1, 2), 3)),
    (Names(), [], ()),
    (Files(), [Path("a.py"), "b.py"], ("a.py", "b.py")),
    (FEEDS, {"data": (2, 3), "more": 4}, (("data", (2, 3)), ("more", (4,)))),
    (SETTINGS, {"tiles_per_ipu": 64}, (("tiles_per_ipu", "64"),)),
    (SETTINGS, ["a=1", "b = 2"], (("a", "1"), ("b", "2"))),
    (MeshAxes(), {"data": np.int64(2)}, (("data", 2),)),
    (DimensionAxes(), P("data", None, ("a", "b"), P.UNCONSTRAINED), OF_JAX),
    (DimensionAxes(), ["data", (), ["a", "b"], "?"], OF_JAX),
]

NOT_CHECKED = [
    (Integer(0, 9), "4"),
    (Integer(0, 9), True),
    (Integer(0, 9), 4.0),
    (Proportion(), "0.5"),
    (Proportion(), float("nan")),
    (Proportion(), True),
    (Proportion(), 10**400),
    (Flag(), 1),
    (Flag(), "true"),
    (Choice(("on", "off")), True),
    (SIZE, 1.5),
    (SIZE, 2**51),
    (Integers(0, 9), "1,2"),
    (Integers(0, 9), []),
    (Integers(0, 9), [1, 1]),
    (DeviceMap(), [0, [1, [2]]]),
    (DeviceMap(), "0,[1,[2]]"),
    (DeviceMap(), []),
    (Names(), "loss"),
    (Names(), ["loss", "loss"]),
    (Names(), [1]),
    (SETTINGS, ["tiles_per_ipu=1", "chip.tiles_per_ipu=2"]),
    (SETTINGS, {"tiles_per_ipu": True}),
    (SETTINGS, {3: 4}),
    (SETTINGS, "tiles_per_ipu=1"),
    (MeshAxes(), {"data": True}),
    (MeshAxes(), {}),
    (DimensionAxes(), {"data": 1}),
    (DimensionAxes(), [1]),
]


@pytest.mark.parametrize(("kind", "value", "kept"), CHECKED)
def test_values_are_checked_and_kept_in_one_form(kind: Kind, value: object, kept: object) -> None:
    found = kind.check(value)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(("kind", "value"), NOT_CHECKED)
def test_values_of_other_types_are_not(kind: Kind, value: object) -> None:
    assert kind.check(value) is None


def test_paths_are_taken_from_a_folder() -> None:
    folder = Path("/etc/x")
    assert Location().rebased("cache", folder) == "/etc/x/cache"
    assert Location().rebased("/abs", folder) == "/abs"
    assert Location().rebased("~/c", folder) == str(Path.home() / "c")
    assert Target().rebased("gc200", folder) == "gc200"
    assert Target().rebased("mine.toml", folder) == "/etc/x/mine.toml"
    assert Files().rebased(("a.py", "/b.py"), folder) == ("/etc/x/a.py", "/b.py")


def test_which_values_name_files() -> None:
    assert Target().names_file("a/b")
    assert Target().names_file("b.toml")
    assert not Target().names_file("bow")
    assert Location().names_file("bow")
    assert not Kind().names_file("a/b")
