"""Sweeps: figures against `hloipu estimate`, what is shared, kept, refused and resumed."""

import json
import os
import resource
import shlex
import sqlite3
from collections.abc import Callable, Mapping
from operator import le
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hloipu
from hloipu.report.study_forms import csv_text
from hloipu.sweeping.goals import pareto
from hloipu.sweeping.jobs import WORKER_DIED, Job
from hloipu.sweeping.request import Compile
from hloipu.sweeping.running import Runner, planned, run_points
from hloipu.sweeping.store import Row, Store
from hloipu.sweeping.study import Rows
from hloipu.sweeping.workers import Task
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.machine.load import load_machine
from tests.support.command_line import run

MODULE = """HloModule m
ENTRY e {
  p = f32[8,16] parameter(0)
  w = f32[16,4] parameter(1)
  d = f32[8,4] dot(p, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT x = f32[8,4] exponential(d)
}
"""
AXES: Mapping[str, Any] = {
    "set.tiles_per_ipu": ["default", 2], "batch": [8, 16], "dtype": ["f32", "bf16"],
}  # fmt: skip


def estimated(command: str) -> dict[str, Any]:
    """Return the profile that a row's command prints."""
    text = ""
    for part in command.split(" | "):
        words = shlex.split(part)[1:] + (["--json"] if " estimate " in part else [])
        outcome = run(*words, stdin=text)
        assert outcome.code == 0, outcome.err
        text = outcome.out
    return dict(json.loads(text))


def test_each_row_has_the_figures_of_its_command(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(MODULE)
    rows = hloipu.sweep(file, AXES, workers=0, target="tiny")
    assert [tuple(row.settings.values()) for row in rows] == [
        (tiles, batch, dtype)
        for tiles in ("default", "2") for batch in ("8", "16") for dtype in ("f32", "bf16")
    ]  # fmt: skip
    for row in rows:
        profile = estimated(row.command)
        assert row.figures["cycles"] == profile["lower_bound_cycles"]
        assert row.figures["peak_bytes"] == profile["memory"]["peak"]["total_bytes"]
        seconds = profile["lower_bound_cycles"] / profile["machine"]["clock_hz"]
        samples = int(row.settings["batch"]) / seconds
        assert row.figures["samples_per_second"] == pytest.approx(samples)


def test_points_that_compile_to_the_same_share_a_job(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    axes: dict[str, Any] = {
        "target": ["default", "tiny"],
        "dtype": ["default", "f32"],
        "batch": ["default", 8],
        "set.tiles_per_ipu": ["default", load_machine("tiny").chip.tiles_per_ipu],
    }
    rows = hloipu.sweep(MODULE, axes, path=path, workers=0, target="tiny")
    assert len(rows) == 16
    assert len({row.figures["cycles"] for row in rows}) == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from results").fetchone() == (1,)


def test_points_that_fail_are_rows_with_their_errors() -> None:
    axes = {"set.tiles_per_ipu": ["default", 0, -5], "stages": ["default", 64],
            "batch": ["default", 7]}  # fmt: skip
    rows = hloipu.sweep(MODULE, axes, workers=0, target="tiny")
    assert len(rows) == 12
    assert not rows[0].code
    assert all(row.code.startswith("E") and row.message for row in rows[2:])
    assert (
        hloipu.sweep("hlo_samples/newton_while.hlo", {"batch": [4]}, workers=0)[0].code == "E1011"
    )
    bf16 = MODULE.replace("f32", "bf16")
    assert hloipu.sweep(bf16, {"dtype": ["f16"]}, workers=0)[0].code == "E3195"


def test_a_point_ends_when_its_time_is_up() -> None:
    rows = hloipu.sweep(MODULE, {"target": ["tiny"]}, workers=0, point_seconds=1e-9)
    assert rows[0].code == "E5017"


HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "no axes": ("E3190", {"axes": {}}),
    "no steps": ("E3190", {"step": []}),
    "one step twice": ("E3190", {"step": [MODULE, MODULE]}),
    "a broken step": ("E0001", {"step": "HloModule m\n"}),
    "no points": ("E3190", {"points": 0}),
    "a seed below 0": ("E3190", {"seed": -1}),
    "an unknown goal": ("E3190", {"goals": ["speed"]}),
    "a goal twice": ("E3190", {"goals": ["cycles", "cycles"]}),
    "many workers": ("E3190", {"workers": 10**6}),
    "workers of a cluster": ("E3190", {"workers": 2, "scheduler": "tcp://127.0.0.1:1"}),
    "memory of no worker": ("E3190", {"point_memory": "1GiB"}),
    "no memory": ("E3190", {"point_memory": "1KiB", "workers": 1}),
    "memory in words": ("E3011", {"point_memory": "much"}),
    "no time": ("E3190", {"point_seconds": -1.0}),
    "an unknown option": ("E3010", {"colour": "red"}),
    "a folder as file": ("E3191", {"path": "."}),
    "a file nowhere": ("E3004", {"path": "no/such/folder/s.db"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_sweep_can_do_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, changed = HOSTILE[name]
    arguments = {"step": MODULE, "axes": {"target": ["tiny"]}, "workers": 0, **changed}
    with pytest.raises(HloipuError) as caught:
        hloipu.sweep(**arguments)
    assert caught.value.code[:2] == code[:2] if code == "E0001" else caught.value.code == code
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_studies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    hloipu.sweep(MODULE, {"target": ["tiny"]}, path=path, workers=0)
    assert run("sweep-show", str(tmp_path / "none.db")).code == 2
    random = Random(0)
    good = path.read_bytes()
    for number in range(40):
        data = bytearray(good)
        for _ in range(1 if number % 2 else 2000):
            data[random.randrange(len(data))] = random.randrange(256)
        path.write_bytes(data[: random.randrange(len(data))] if number % 5 == 0 else data)
        outcome = run("sweep-show", str(path))
        assert outcome.code in (0, 9), outcome.err
        assert "Traceback" not in outcome.err


def test_one_sweep_at_a_time_writes_a_study(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    given: dict[str, Any] = {"axes": {"target": ["tiny"]}, "path": path, "workers": 0}
    rows = hloipu.sweep(MODULE, **given)
    with Store.opened(path, writes=True), pytest.raises(UsageError) as caught:
        hloipu.sweep(MODULE, resume=True, **given)
    assert caught.value.code == "E3191"
    assert [x.record for x in hloipu.sweep(MODULE, resume=True, **given)] == [
        x.record for x in rows
    ]


@pytest.mark.parametrize("most_bytes", [30_000, 50_000], ids=["index", "log"])
def test_a_full_disk_ends_a_sweep_and_loses_nothing(most_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    given: dict[str, Any] = {
        "axes": {"set.bytes_per_tile": range(50_000, 50_020)},
        "path": path,
        "workers": 0,
        "target": "tiny",
    }
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot (write|open)") as caught:
            hloipu.sweep(MODULE, **given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code == "E3004"
    assert len(hloipu.sweep(MODULE, resume=True, **given)) == 20


def test_a_study_in_a_folder_that_is_read_only_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    hloipu.sweep(MODULE, {"target": ["tiny"]}, path=path, workers=0)
    monkeypatch.setattr(os, "access", lambda *_: False)  # who is root may write everywhere
    with Store.opened(path) as store:
        assert len(list(store.rows())) == 1
        assert list(tmp_path.iterdir()) == [path]


class Mortal:
    """Workers that die of one job, and once of every other; all that is out dies with them."""

    places = 3
    deaths_alone = 2

    def __init__(self, deadly: str) -> None:
        self.deadly = deadly
        self.out: list[str] = []
        self.once: set[str] = set()
        self.alone: list[str] = []

    def start(self) -> None: ...
    def close(self) -> None: ...

    def submit(self, task: Task) -> None:
        self.out.append(task.key)

    def wait(self) -> tuple[str, list[dict[str, Any]] | None]:
        key = self.out.pop(0)
        if key == self.deadly or (self.deadly in self.out and key not in self.once):
            self.once.add(key)
            return key, None
        return key, [{"figures": {"fits": True}, "wall_seconds": 1.0}]


def test_a_job_that_ends_its_worker_is_a_row_and_others_are_not_blamed(tmp_path: Path) -> None:
    with Store.new(tmp_path / "s.db", {}, {}) as store:
        runner = Runner(store, Mortal("3"), 6)
        points: Any = iter([{"stages": str(n)} for n in range(6)])

        def compile_of(point: Mapping[str, str]) -> Compile:
            return Compile(point["stages"], "", Job(point["stages"], "", "", {}))

        run_points(runner, planned(store, points, compile_of))
        assert [row.code for row in store.rows()] == ["", "", "", WORKER_DIED, "", ""]


def test_the_front_is_what_no_row_beats() -> None:
    random = Random(1)
    for goals in (("cycles",), ("cycles", "ipus"), ("cycles", "ipus", "samples_per_second")):
        figures = [
            {"fits": random.random() < 0.8, **{goal: random.randrange(6) for goal in goals}}
            for _ in range(60)
        ]
        rows = [Row(n, {}, "", {"figures": x}) for n, x in enumerate(figures)]

        def worth(row: Row, goals: tuple[str, ...] = goals) -> tuple[int, ...]:
            return tuple(row.figures[g] * (-1 if "samples" in g else 1) for g in goals)

        fitting = [worth(row) for row in rows if row.fits]
        wanted = {
            one for one in fitting if not any(x != one and all(map(le, x, one)) for x in fitting)
        }
        found = [worth(row) for row in pareto(rows, goals)]
        assert set(found) == wanted
        assert len(found) == len(wanted)


def test_rows_leave_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    axes = {"dtype": ["f32", "f16"]}
    rows = hloipu.sweep(MODULE, axes, path=path, workers=0, target="tiny")
    for name, holds in {"s.csv": b"number,dtype,fits", "s.json": b"hloipu.study/1",
                        "s.html": b"</html>"}.items():  # fmt: skip
        assert run("sweep-show", str(path), "-o", str(tmp_path / name)).code == 0
        assert holds in (tmp_path / name).read_bytes()
    assert run("sweep-show", str(path), "-o", str(tmp_path / "s.xls")).code == 2
    text = run("sweep-show", str(path), "--module", "".join(rows[0].command.split()[4:5])).out
    assert text == MODULE
    evil = Rows([Row(1, {"target": "=cmd()"}, "", {})], ())
    assert "'=cmd()" in csv_text(evil)


def _resumed(path: Path, **changed: Any) -> Callable[[], Rows]:
    arguments: dict[str, Any] = {"step": MODULE, "axes": AXES, "workers": 0, "target": "tiny"}
    return lambda: hloipu.sweep(**{**arguments, **changed}, path=path, resume=True)


def test_a_study_goes_on_where_it_is_the_same_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = _resumed(path)()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "delete from results where key in (select key from points order by number limit 3)"
        )
        connection.execute("delete from points where number > 6")
    again = _resumed(path)()
    assert [row.figures for row in again] == [row.figures for row in rows]
    kept = sum(row.record == before.record for row, before in zip(again, rows, strict=True))
    assert kept == 5
    for changed in ({"axes": {"target": ["tiny"]}}, {"seed": 1}, {"target": "gc200"},
                    {"step": MODULE.replace("16", "32")}):  # fmt: skip
        with pytest.raises(HloipuError) as caught:
            _resumed(path, **changed)()
        assert caught.value.code == "E3191"
    with pytest.raises(HloipuError, match="there is a file"):
        hloipu.sweep(MODULE, AXES, path=path, workers=0)
