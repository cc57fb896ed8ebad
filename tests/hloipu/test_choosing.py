"""A way that does not fit after all makes room for one that keeps less."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

import hloipu
from hloipu import api as session
from hloipu import choosing
from hloipu.choice_trials import _as_slow, with_trials
from hloipu.choosing import chosen, priced
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu.training.programs import StepPrograms
from hloipu_compiler.driver import compile_module
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.candidate import Candidate, Estimate
from hloipu_compiler.partition.search.rounds import looked_at
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.program.faults import Fault, ProgramError
from hloipu_runtime.watching import Search, searching
from tests.compiler.partition.training.test_inference import LAYERS, text

TEXT = text(named=False)


@dataclass(frozen=True)
class Memory:
    fits: bool
    available_bytes: int = 100
    lacking_bytes: int = 20
    code_bytes: int = 10
    executable_bytes: int = 50

    @property
    def peak(self) -> "Peak":
        return Peak(50 if self.fits else self.available_bytes + self.lacking_bytes)


@dataclass(frozen=True)
class Peak:
    total_bytes: int


@dataclass(frozen=True)
class Program:
    memory: Memory


GIVEN: dict[str, Any] = {
    "ipus": 4, "plan": "auto", "micro_batches": 8, "feed": {"data": (LAYERS,)}, "loop": 1,
}  # fmt: skip


def asked() -> Options:
    return resolve("compile", GIVEN).options


def test_ways_are_tried_until_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = hloipu.verify(TEXT), []
    monkeypatch.setattr("hloipu.choice_trials._times_slower", lambda *_: 1.0)

    def tried(_: Module, options: Options) -> Any:
        seen.append((options.stages, options.schedule, options.recompute, options.offload_weights))
        return Program(Memory(fits=len(seen) == 2))

    choice = chosen(module, asked(), tried)
    assert choice.is_tried
    assert len(seen) == len(set(seen)) == 2
    best = choice.best.candidate
    assert (best.stages, best.schedule) == seen[-1][:2]


@pytest.mark.parametrize(("slower", "trials"), [(1.0, 1), (3.0, 2)])
def test_of_ways_slower_than_thought_the_fastest_is_taken(
    slower: float, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, seen = hloipu.verify(TEXT), []
    first = chosen(module, asked()).best.candidate.stages

    def times_slower(_: Any, thought: Any) -> float:
        return slower if thought.candidate.stages == first else 1.0

    def tried(_: Module, options: Options) -> Any:
        seen.append(options.stages)
        return Program(Memory(fits=True))

    monkeypatch.setattr("hloipu.choice_trials._times_slower", times_slower)
    choice = chosen(module, asked(), tried)
    assert choice.is_tried
    assert len(seen) == trials
    assert (choice.best.candidate.stages == first) == (slower == 1.0)


def test_stages_in_turn_are_as_slow_as_others_in_turn() -> None:
    maps = (0, 0), (0, 0, 0), (0, 1), ()
    ways = [
        Estimate(Candidate(max(1, len(on)), device_map=on), 100, 6.0, 1, 1, 1, True, 0.0)
        for on in maps
    ]
    slow = _as_slow(ways, replace(ways[0], candidate=Candidate(4, device_map=(0,) * 4)), 1.5)
    assert [way.per_second for way in slow] == [4.0, 4.0, 6.0, 6.0]
    assert [way.update_cycles for way in _as_slow(ways, ways[2], 1.5)] == [100, 100, 150, 100]


def test_devices_named_by_ids_are_what_is_filled() -> None:
    options = resolve("compile", {**GIVEN, "ipus": 1, "ipu_ids": (25,)}).options
    assert chosen(hloipu.verify(TEXT), options).rows == chosen(hloipu.verify(TEXT), asked()).rows


def test_what_is_not_proved_is_passed_over_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloipu.choice_trials._times_slower", lambda *_: 1.0)
    module = hloipu.verify(TEXT)
    made: list[Options] = []

    def tried(_: Module, options: Options) -> Any:
        made.append(options)
        if len(made) == 1:
            raise ProgramError([Fault("version", "body/0", "is written twice")])
        return Program(Memory(fits=True))

    choice = chosen(module, asked(), tried)
    assert choice.is_tried
    (note,) = choice.notes
    assert "passed over" in note
    assert "E4050" in note
    assert "is written twice" in note


def test_trials_end_with_what_lacked_least() -> None:
    module, seen = hloipu.verify(TEXT), []

    def tried(_: Module, options: Options) -> Any:
        seen.append(options)
        return Program(Memory(fits=False, lacking_bytes=90 - len(seen)))

    options = replace(asked(), partition="off")
    choice = chosen(module, options, tried)
    assert not choice.is_tried
    assert 1 < len(seen) <= 4
    assert choice.options(options) == seen[-1]


def test_trials_of_long_modules_begin_with_what_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lacks memory tells how far off others are; what is cut alike has to fit by that."""
    monkeypatch.setattr("hloipu.choice_trials.is_long", lambda _: True)
    monkeypatch.setattr("hloipu.choice_trials._times_slower", lambda *_: 1.0)
    module, seen = hloipu.verify(TEXT), []
    choice, machine = chosen(module, asked()), priced(module, asked()).machine
    budget = choice.best.budget_bytes

    def estimate(
        rate: float, share: float, stages: int, recompute: str, cut_at: tuple[int, ...] = ()
    ) -> Estimate:
        return replace(
            choice.best, per_second=rate, needed_bytes=round(share * budget), fits=share <= 1,
            candidate=Candidate(stages, recompute=recompute, cut_at=cut_at),
        )  # fmt: skip

    def tried(_: Module, options: Options) -> Any:
        seen.append((options.stages, options.recompute))
        return Program(Memory(fits=options.stages == fitting, lacking_bytes=30))

    every = [
        estimate(12.1, 1.2, 2, "cheap"), estimate(11.9, 1.19, 2, "auto"),  # cut alike
        estimate(8.5, 1.05, 2, "full", (1,)),  # 1.14 times, as far off as the first
        estimate(8.0, 1.03, 3, "full"),  # of another number of stages: not as far off
        estimate(5.5, 0.9, 6, "full"),
        estimate(5.0, 0.85, 4, "full"), estimate(1.0, 0.5, 5, "full"),
    ]  # fmt: skip
    fitting = 3
    assert with_trials(choice, every, asked(), tried, machine).best == every[3]
    assert seen == [(2, "cheap"), (3, "full")]
    seen.clear()
    fitting = 6
    assert with_trials(choice, every, asked(), tried, machine).best.candidate.stages == 6
    assert seen == [(2, "cheap"), (3, "full"), (6, "full")]
    seen.clear()
    with_trials(choice, every[:3], asked(), tried, machine)
    assert seen == [(2, "cheap"), (2, "full")]  # nothing else is left


@pytest.mark.parametrize(
    ("fits", "slower", "searched"),
    [(True, 1.0, []), (True, 4.0, [True]), (False, 1.0, [False])],
)
def test_shardings_of_long_modules_wait_for_trials_of_what_may_fit(
    fits: bool, slower: float, searched: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None are searched where a program does nearly all that the IPUs can do."""
    found, made = list[bool](), list[Options]()

    def larger(*given: Any, **named: Any) -> list[Estimate]:
        return [
            replace(x, needed_bytes=x.budget_bytes * 6 // 5, fits=False)
            for x in looked_at(*given, **named)
        ]

    def shardings(*_: object, fits: bool) -> list[Any]:
        assert made
        found.append(fits)
        raise UnsupportedError("E0475", "an op that is not divided")

    def tried(_: Module, options: Options) -> Any:
        made.append(options)
        return Program(Memory(fits=fits))

    monkeypatch.setattr(choosing, "looked_at", larger)
    monkeypatch.setattr(choosing, "shardings_beside_cuts", shardings)
    for name in ("choosing", "choice_trials"):
        monkeypatch.setattr(f"hloipu.{name}.is_long", lambda _: True)
    monkeypatch.setattr("hloipu.choice_trials._times_slower", lambda *_: slower)
    choice = chosen(hloipu.verify(TEXT), asked(), tried)
    assert choice.is_tried is fits
    assert found == searched
    assert ["not divided" in note for note in choice.notes] == [True] * len(searched)


def test_where_code_has_no_room_the_next_way_uses_more_ipus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stages in turn take less memory than one stage, and no less code."""
    monkeypatch.setattr("hloipu.choice_trials._times_slower", lambda *_: 1.0)
    module, seen = hloipu.verify(TEXT), []
    choice, machine = chosen(module, asked()), priced(module, asked()).machine

    def estimate(rate: float, share: float, device_map: tuple[int, ...]) -> Estimate:
        return replace(
            choice.best, per_second=rate, needed_bytes=round(share * choice.best.budget_bytes),
            fits=True, candidate=Candidate(len(device_map), device_map=device_map),
        )  # fmt: skip

    every = [
        estimate(9.0, 0.8, (0,)), estimate(8.0, 0.7, (0, 0)), estimate(5.0, 0.6, (0, 1)),
        estimate(7.0, 0.5, (0, 0, 0)),
    ]  # fmt: skip

    def tried(_: Module, options: Options) -> Any:
        seen.append(options.device_map)
        return Program(replace(Memory(fits=len(seen) > 1, lacking_bytes=lacking), code_bytes=code))

    code, lacking = 51, -1
    start = replace(choice, best=every[0])
    assert with_trials(start, every, asked(), tried, machine).best.candidate.ipus == 2
    assert seen == [(0,), (0, 1)]
    seen.clear()
    with_trials(start, [every[0], every[1]], asked(), tried, machine)
    assert seen == [(0,), (0, 0)]
    seen.clear()
    code, lacking = 50, 1
    with_trials(start, every, asked(), tried, machine)
    assert seen == [(0,), (0, 0)]


def test_trials_end_with_whole_arrays_and_with_blocks() -> None:
    module, count = hloipu.verify(TEXT), []

    def tried(_: Module, options: Options) -> Any:
        count.append(options)
        return Program(Memory(fits=False))

    choice = chosen(module, asked(), tried)
    assert not choice.is_tried
    assert len(count) <= 8  # four each


def test_without_trials_the_fastest_by_estimate_is_taken() -> None:
    choice = chosen(hloipu.verify(TEXT), asked())
    assert choice.best == choice.rows[0]
    assert all(row.candidate.micro_batches == 8 for row in choice.rows)
    assert all(row.candidate.ipus * row.candidate.replicas <= 4 for row in choice.rows)
    options = choice.options(asked())
    assert (options.plan, options.replicas) == ("none", choice.best.candidate.replicas)


def test_what_was_tried_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count = []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        count.append(arguments)
        return compile_module(*arguments, **keywords)

    monkeypatch.setattr(session, "compile_module", counted)
    program = hloipu.compile(TEXT, plan="auto", ipus=4, cache=False, feed={"data": (LAYERS,)})
    assert program.fits
    assert len(count) == 1
    hloipu.compile(TEXT, cache=False, feed={"data": (LAYERS,)}, stages=2)
    assert len(count) == 2


def test_trainers_settle_on_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = StepPrograms({}, (), TEXT, {
        "plan": "auto", "ipus": 4, "cache": False, "feed": {"data": (LAYERS,)}, "target": "tiny",
        "over_memory": "allow",
    })  # fmt: skip
    few, many = programs.program(2), programs.program(6)
    assert (few.program.ipus, few.program.replicas) == (many.program.ipus, many.program.replicas)
    assert (few.program.steps_per_run, many.program.steps_per_run) == (2, 6)
    monkeypatch.setattr(choosing, "chosen", None)
    programs.program(4)


def test_no_way_takes_more_ipus_than_the_system_has() -> None:
    module = hloipu.verify(TEXT)
    two = resolve("compile", {**GIVEN, "replicas": 2}).options
    assert {row.candidate.ipus for row in chosen(module, two).rows} <= {1, 2}
    for given in ({"replicas": 8}, {"stages": 7, "replicas": 2}, {"device_map": [0, 1, 2, 3, 4]}):
        options = resolve("compile", {**GIVEN, **given}).options
        with pytest.raises(UnsupportedError, match="4 IPUs were asked for") as caught:
            chosen(module, options)
        assert caught.value.code == "E0475"


def test_stages_on_several_ipus_are_not_looked_for() -> None:
    options = resolve("compile", {"plan": "auto", "ipus": 4, "device_map": [0, [1, 2]]}).options
    with pytest.raises(StagingError, match="E0565"):
        chosen(hloipu.verify(TEXT), options)


def test_devices_that_are_named_are_filled() -> None:
    module = hloipu.verify(TEXT)
    given = {**GIVEN, "ipus": None, "ipu_ids": [25]}  # IPUs 4 to 7
    rows = chosen(module, resolve("compile", given).options).rows
    assert {row.candidate.ipus * row.candidate.replicas for row in rows} == {4}
    with pytest.raises(UnsupportedError, match="as many") as caught:
        chosen(module, resolve("compile", {**given, "stages": 7}).options)
    assert caught.value.code == "E0475"


class Ticks:
    """A clock that goes on by a second whenever somebody looks."""

    def __init__(self) -> None:
        self.seconds = 0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def test_the_best_until_time_is_up_is_taken() -> None:
    module = hloipu.verify(TEXT)
    whole = chosen(module, asked())
    counts = []
    for seconds in (1, 20, 10**9):
        with searching(Search(seconds, Ticks())) as search:
            choice = chosen(module, asked())
        counts.append(choice.looked_at)
        assert bool(search.ended) == (choice.looked_at < whole.looked_at)
        assert choice.best.per_second <= whole.best.per_second
    assert counts[0] == 1
    assert counts[0] < counts[1] < counts[2] == whole.looked_at


def test_a_compile_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloipu_runtime.watching.Search.is_over", over)
    program = hloipu.compile(TEXT, cache=False, time_limit=1e-3, **GIVEN)
    assert "its time of 0.001 s was up" in program.options["search"]
    assert program.fits


def over(search: Search) -> bool:
    """Have time be up at once."""
    search.end("its time of 0.001 s was up")
    return True


@pytest.mark.parametrize("given", [{"stages": 40}, {"device_map": [0] * 40}])
def test_more_stages_than_forward_ops_are_refused(given: dict[str, Any]) -> None:
    options = resolve("compile", {**GIVEN, **given}).options
    with pytest.raises(StagingError) as caught:
        chosen(hloipu.verify(TEXT), options)
    assert caught.value.code == "E0506"
    with pytest.raises(StagingError) as caught:
        choosing.sweep(hloipu.verify(TEXT), options, {"recompute": ("none",)})
    assert caught.value.code == "E0506"
