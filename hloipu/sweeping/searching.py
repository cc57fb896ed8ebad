"""Search for the best points of a sweep with Optuna."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hloipu.sweeping.axes import Axis, combinations
from hloipu.sweeping.goals import LARGER_IS_BETTER, value_of
from hloipu.sweeping.request import Compile
from hloipu.sweeping.running import Runner
from hloipu.sweeping.store import Row
from hloipu_runtime.errors import UsageError

_ASKED_PER_POINT = 8
"""Times that Optuna is asked for each new point, at most: it may say known ones again."""
_LACKING = "lacking_bytes"
"""Attribute of a trial: bytes by which its fullest tile is too small; 0 or less where it fits."""


def require_optuna() -> None:
    """Raise UsageError E3192 where Optuna is not installed."""
    if find_spec("optuna") is None:
        raise UsageError(
            "E3192",
            "goals are searched for by Optuna, which is not installed",
            hint="pip install 'hloipu[sweep]'; or draw points: --points N --seed S",
        )


class Finder:
    """An Optuna study over axes: rising integers are ordered, other values are categories."""

    def __init__(self, axes: Sequence[Axis], goals: Sequence[str], seed: int, places: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._axes = axes
        self._goals = goals
        self._known: dict[tuple[str, ...], Mapping[str, Any] | None] = {}
        self._study = optuna.create_study(
            directions=["maximize" if x in LARGER_IS_BETTER else "minimize" for x in goals],
            sampler=self._sampler(seed % 2**32, places),
        )

    def _sampler(self, seed: int, places: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constraints and `constant_liar` are experimental
            return self._optuna.samplers.TPESampler(
                seed=seed,
                multivariate=True,
                constant_liar=places > 1,
                constraints_func=lambda trial: (trial.user_attrs.get(_LACKING, 0),),
            )

    def ask(self) -> tuple[Any, dict[str, str]]:
        """Return a trial and its point."""
        trial = self._study.ask(self._distributions())
        return trial, {x.name: x.values[int(trial.params[x.name])] for x in self._axes}

    def tell(self, trial: Any, record: Mapping[str, Any]) -> None:
        """Report the result of a trial."""
        values, lacking = self._told(record)
        if values is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            return
        trial.set_user_attr(_LACKING, lacking)
        self._study.tell(trial, values)

    def add(self, row: Row) -> None:
        """Add a row that was there before."""
        values, lacking = self._told(row.record or {})
        if values is None:
            return
        places = {x.name: x.values.index(row.settings[x.name]) for x in self._axes}
        attributes = {_LACKING: lacking}
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=places,
                distributions=self._distributions(),
                values=values,
                user_attrs=attributes,
                system_attrs={"constraints": (lacking,)},
            )
        )

    def _told(self, record: Mapping[str, Any]) -> tuple[list[float] | None, int]:
        figures = record.get("figures") or {}
        signed = [value_of(figures, goal) for goal in self._goals]
        if None in signed:
            return None, 0
        values = [float(figures[goal]) for goal in self._goals]
        return values, int(figures["peak_bytes"] - figures["available_bytes"])

    def _distributions(self) -> dict[str, Any]:
        kinds = self._optuna.distributions
        return {
            axis.name: kinds.IntDistribution(0, len(axis.values) - 1)
            if axis.is_ordered
            else kinds.CategoricalDistribution(range(len(axis.values)))
            for axis in self._axes
        }


def search_points(
    runner: Runner,
    finder: Finder,
    axes: Sequence[Axis],
    count: int,
    compile_of: Callable[[dict[str, str]], Compile],
) -> None:
    """Run points that Optuna asks for, until `count` different ones are in the file."""
    compiles: dict[tuple[str, ...], Compile] = {}
    for row in runner.store.rows():
        point = dict(row.settings)
        compiles[tuple(point.values())] = compile_of(point)
        if row.record is not None:
            finder.add(row)
        else:
            runner.begin(compiles[tuple(point.values())])
    count = min(count, combinations(axes))
    open_trials: list[tuple[Any, Compile]] = []
    asked = 0

    def settle() -> None:
        for trial_and_compile in [x for x in open_trials if runner.is_done(x[1].key)]:
            open_trials.remove(trial_and_compile)
            finder.tell(trial_and_compile[0], runner.store.record(trial_and_compile[1].key))
        runner.tell(len(compiles) - len(open_trials))

    while len(compiles) < count and asked < _ASKED_PER_POINT * count:
        while not runner.has_room:
            runner.wait()
            settle()
        trial, point = finder.ask()
        asked += 1
        values = tuple(point.values())
        if values not in compiles:
            compile = compiles[values] = compile_of(point)
            number = len(compiles)
            runner.store.add_points([(number, point, compile.key, compile.command)])
            runner.begin(compile)
        open_trials.append((trial, compiles[values]))
        settle()
    while not runner.is_idle:
        runner.wait()
        settle()
