"""Sweeps from Python: `hloipu.sweep` runs one, and gives its rows."""

import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hloipu.options.kinds import Size
from hloipu.options.resolve import OptionWarning, resolve
from hloipu.showing import shown
from hloipu.sweeping.axes import FILE, Axis, axis_of, checked_axes, combinations, points_of
from hloipu.sweeping.goals import FIGURES, USUAL_GOALS, checked_goals, pareto
from hloipu.sweeping.jobs import fingerprint
from hloipu.sweeping.request import Compiles, SweptModule, swept_module
from hloipu.sweeping.running import Runner, planned, run_points
from hloipu.sweeping.store import Row, Store
from hloipu.sweeping.workers import workers_for
from hloipu.text import HloInput, read_source
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_runtime.arguments import checked
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.watching import doing

USUAL_POINTS = 100
"""That a search looks at. Assumed."""
_LEAST_MEMORY_BYTES = 2**28
"""Of a worker: what importing hloipu takes, and room for a small module."""
_MOST_SECONDS = 10**7


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of a sweep, apart from those of each compile."""

    axes: tuple[Axis, ...]
    points: int | None = None
    """Points to draw or to look for; None: all, or USUAL_POINTS of a search."""
    seed: int = 0
    goals: tuple[str, ...] = ()
    """Figures to search for the best of; empty: a grid, or points drawn at random."""
    workers: int | None = None
    scheduler: str | None = None
    point_memory: int | None = None
    """Bytes that a worker may take."""
    point_seconds: float | None = None
    resume: bool = False
    config: str | None = None

    def plan(
        self, modules: Sequence[SweptModule], shared_options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return all that decides about the rows of a study, as JSON data."""
        plan = {
            "axes": [[axis.name, list(axis.values)] for axis in self.axes],
            "points": self.points,
            "seed": self.seed,
            "goals": self.goals,
            "options": {name: repr(value) for name, value in sorted(shared_options.items())},
            "modules": [[module.name, module.digest] for module in modules],
            "compiler": fingerprint(),
        }
        return dict(json.loads(json.dumps(plan)))


class Rows(Sequence[Row]):
    """The rows of a study, in order."""

    def __init__(self, rows: Sequence[Row], goals: Sequence[str]) -> None:
        self._rows = tuple(rows)
        self.goals: tuple[str, ...] = tuple(goals) or USUAL_GOALS

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._rows[place]

    @property
    def best(self) -> list[Row]:
        """The Pareto front of the goals: by default of seconds and bytes of the fullest tile."""
        return pareto(self._rows, self.goals)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes' names."""
        return tuple(self._rows[0].settings) if self._rows else ()

    def records(self) -> list[dict[str, Any]]:
        """Return each row as one flat record: number, axes, figures, error, command."""
        return [
            {
                "number": row.number,
                **row.settings,
                "fits": row.figures.get("fits"),
                **{name: row.figures.get(name) for name in FIGURES},
                "code": row.code,
                "message": row.message,
                "wall_seconds": (row.record or {}).get("wall_seconds"),
                "worker_bytes": (row.record or {}).get("worker_bytes"),
                "command": row.command,
            }
            for row in self._rows
        ]

    def frame(self) -> Any:
        """Return the records as a DataFrame; UsageError E3192 where pandas is not installed."""
        if find_spec("pandas") is None:
            raise UsageError("E3192", "pandas is not installed", hint="pip install pandas")
        import pandas

        return pandas.DataFrame(self.records())


def read_rows(store: Store) -> Rows:
    """Return what is in the file of a study."""
    goals = [str(goal) for goal in store.plan().get("goals") or ()]
    return Rows(list(store.rows()), checked_goals(goals))


@checked
def sweep(
    step: HloInput | Sequence[Any],
    axes: Mapping[str, Sequence[Any]],
    *,
    path: str | Path | None = None,
    points: int | None = None,
    seed: int = 0,
    goals: Sequence[str] = (),
    workers: int | None = None,
    scheduler: str | None = None,
    point_memory: int | str | None = None,
    point_seconds: float | None = None,
    resume: bool = False,
    **options: Any,
) -> Rows:
    """Estimate a module under every combination of values, and return a row for each.

    `step`: HLO text, its path, or a list of paths, which are an axis of their own. `axes`: option,
    `set.KEY`, `batch` or `dtype` -> values. `points`: how many to draw with `seed`, or to look for
    where `goals` name figures. `path`: the file that keeps the rows, to `resume` from; without it
    they are returned only. `workers`: processes, 0 for none; `scheduler`: a Dask cluster.
    `point_memory`: bytes that a worker may have; `point_seconds`: that a point may take. `options`:
    those of `hloipu estimate` that all points share. What a point fails with is in its row. Raises
    what `hloipu.verify` raises, and UsageError for axes, goals, workers and files.
    """
    steps: Sequence[Any] = step if isinstance(step, list | tuple) else [step]
    memory: Any = Size(2**50).check(point_memory) if point_memory is not None else None
    if point_memory is not None and memory is None:
        raise UsageError("E3011", f"point_memory is a number of bytes, not {point_memory!r:.64}")
    asked = Asked(
        tuple(axis_of(name, values) for name, values in axes.items()),
        points, seed, tuple(goals), workers, scheduler, memory, point_seconds, resume,
    )  # fmt: skip
    for warning in resolve("estimate", options).warnings:
        warnings.warn(warning, OptionWarning, stacklevel=3)
    with shown(), doing("sweep"):
        if path is not None:
            return run_study(steps, asked, options, Path(path))
        with tempfile.TemporaryDirectory(prefix="hloipu-study-") as folder:
            return run_study(steps, asked, options, Path(folder) / "study.db")


def run_study(
    steps: Sequence[HloInput],
    asked: Asked,
    shared_options: Mapping[str, Any],
    path: Path,
    limits: Limits = DEFAULT_LIMITS,
) -> Rows:
    """Run a sweep, or go on with one, and return all rows of its file."""
    asked, modules = _checked(steps, asked, shared_options, limits)
    with _store(path, asked.plan(modules, shared_options), modules, resume=asked.resume) as store:
        _run(store, asked, modules, shared_options)
        return read_rows(store)


def _checked(
    steps: Sequence[HloInput], asked: Asked, shared_options: Mapping[str, Any], limits: Limits
) -> tuple[Asked, list[SweptModule]]:
    """Return what is asked for, with files as an axis, and the modules; UsageError E3190."""
    if not steps:
        raise UsageError("E3190", "there is no module to sweep over")
    if asked.points is not None and asked.points < 1:
        raise UsageError("E3190", f"{asked.points} points; a sweep has at least one")
    if asked.seed < 0:
        raise UsageError("E3190", f"the seed is {asked.seed}; give one of at least 0")
    memory, seconds = asked.point_memory, asked.point_seconds
    if memory is not None and memory < _LEAST_MEMORY_BYTES:
        raise UsageError("E3190", f"a worker needs {_LEAST_MEMORY_BYTES:,} bytes, not {memory:,}")
    if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
        raise UsageError("E3190", f"{seconds:g} seconds for a point are not above 0")
    goals = checked_goals(asked.goals)
    names = {axis.name for axis in asked.axes}
    with doing("reading"):
        sources = [read_source(step, limits) for step in steps]
        modules = [
            swept_module(source, shared_options, limits, wants_batch="batch" in names)
            for source in sources
        ]
    axes = asked.axes
    if FILE in names:
        raise UsageError("E3190", "files are an axis already: name several FILEs")
    if len(modules) > 1:
        axes = (Axis(FILE, tuple(module.name for module in modules)), *axes)
        if len(set(axes[0].values)) < len(modules):
            raise UsageError("E3190", "two modules have one name", hint="give paths")
    if not axes:
        raise UsageError("E3190", "there is nothing to sweep over", hint="--over target=gc200,bow")
    changed = {"axes": checked_axes(axes), "goals": goals}
    fields = {name: getattr(asked, name) for name in Asked.__slots__}
    return Asked(**{**fields, **changed}), modules


@contextmanager
def _store(
    path: Path, plan: Mapping[str, Any], modules: Sequence[SweptModule], *, resume: bool
) -> Iterator[Store]:
    """Open the file of the study: a new one, or an existing one to resume.

    Raises UsageError E3191 where it is of another sweep.
    """
    if resume and path.exists():
        store = Store.opened(path, writes=True)
        before = store.plan()
        differing = [name for name in plan if before.get(name) != plan[name]]
        if differing:
            store.close()
            raise UsageError(
                "E3191",
                f"the study in {str(path)!r} has other {' and '.join(differing)}",
                hint="resume it as it was begun, by the same hloipu; or name another file",
            )
    else:
        texts = {module.digest: (module.name, module.text) for module in modules}
        store = Store.new(path, plan, texts)
    with store:
        yield store


def _run(
    store: Store, asked: Asked, modules: Sequence[SweptModule], shared_options: Mapping[str, Any]
) -> None:
    compiles = Compiles(
        modules, shared_options, asked.config, asked.point_seconds, os.fspath(store.path)
    )
    texts = {module.digest: module.text for module in modules}
    total = combinations(asked.axes)
    count = min(asked.points or (USUAL_POINTS if asked.goals else total), total)
    points = points_of(asked.axes, asked.points, asked.seed)
    if asked.goals:
        from hloipu.sweeping.searching import Finder, require_optuna, search_points

        require_optuna()
    else:
        points = _started(points)
    workers = workers_for(texts, asked.workers, asked.scheduler, asked.point_memory)
    try:
        runner = Runner(store, workers, count)
        if asked.goals:
            finder = Finder(asked.axes, asked.goals, asked.seed, workers.places)
            search_points(runner, finder, asked.axes, count, compiles.of)
        else:
            run_points(runner, planned(store, points, compiles.of))
    finally:
        with doing("ending the workers"):
            workers.close()


def _started(points: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Return an iterator that has said already what is wrong with it."""
    first = next(points)
    return (point for part in ([first], points) for point in part)
