"""What is tried with a program that does not fit, in which order, and when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hloipu.fitting import attempts, leaner
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.planners import product_room
from hloipu_runtime.compiled import CompiledProgram

TILES, TILE_BYTES = 4, 1000


@contextmanager
def unclocked(phase: str) -> Iterator[None]:
    yield


def lacks(bytes_per_tile: int) -> CompiledProgram:
    """Return what stands for a program that lacks so much of a tile."""
    machine = SimpleNamespace(
        memory=SimpleNamespace(bytes_per_tile=TILE_BYTES, executable_bytes=TILE_BYTES),
        chip=SimpleNamespace(tiles_per_ipu=TILES),
    )
    fits = bytes_per_tile <= 0
    found = SimpleNamespace(machine=machine, fits=fits, lacking=bytes_per_tile)
    return cast(CompiledProgram, found)


def stand_in(bytes_per_tile: int, cycles: int, on_other: int = 5) -> CompiledProgram:
    """Return one that takes so many cycles besides, and lacks so much on another IPU."""
    found = cast(Any, lacks(bytes_per_tile))
    found.on_other = on_other
    found.program = SimpleNamespace(variables=range(leaner._MANY_VARIABLES + 1))
    found.memory_plan, found.estimate = None, lambda: SimpleNamespace(lower_bound_cycles=cycles)
    return cast(CompiledProgram, found)


@pytest.mark.parametrize(
    ("before", "after", "tried", "best"),
    [
        (100, {0.45: 100, 0.3: 50, 0.15: 0}, [0.45, 0.3, 0.15], 0.15),
        (100, {0.45: 0}, [0.45], 0.45),
        (100, {0.45: 90, 0.3: 95}, [0.45, 0.3], 0.45),  # crumbs, whose code takes more
        (100, {0.45: 101}, [0.45], None),
        (100, {0.45: 100, 0.3: 100, 0.15: 10}, [0.45, 0.3, 0.15], 0.15),
        (251, {}, [], None),  # more than a quarter of a tile
    ],
)
def test_shares_get_smaller_as_long_as_less_lacks(
    before: int,
    after: dict[float, int],
    tried: list[float],
    best: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaner, "lacking_by_ipu", lambda x: [max(0, x.lacking) * TILES])
    shares: list[float] = []

    def compiled(options: Options) -> CompiledProgram:
        shares.append(round(options.available_memory_proportion, 6))
        return lacks(after[shares[-1]])

    options = Options(available_memory_proportion=0.6)
    found = leaner.with_smaller_shares(options, lacks(before), unclocked, compiled)
    assert shares == tried
    assert (found and round(found[1].available_memory_proportion, 6)) == best
    assert found is None or found[0] == lacks(after[best or 0])


@pytest.mark.parametrize(
    ("lacks_after", "tried", "best"),
    [
        ([(60, 11), (20, 12), (0, 13)], 3, 2),
        ([(50, 10), (70, 10), (0, 20)], 3, 2),  # one that lacks more may lead to one that fits
        ([(101, 9, 0), (0, 10, 0)], 2, 1),  # the other IPU gains
        ([(101, 9), (0, 10)], 1, -1),  # whose code takes more than the products spare
        ([(95, 10), (91, 10), (0, 10)], 2, 1),  # by as much each time too much would lack
        ([(90, 12), (80, 13), (70, 14), (60, 15)], 2, -1),  # slower by more than it spares
        ([(90, 10), (20, 10), (15, 10), (12, 10), (0, 10)], 4, 3),
    ],
)
def test_products_are_planned_smaller_as_long_as_that_may_do(
    lacks_after: list[tuple[int, ...]], tried: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [stand_in(*each) for each in [(100, 10), *lacks_after]]
    made: list[CompiledProgram] = []

    def compiled(_: object) -> CompiledProgram:
        made.append(programs[len(made) + 1])
        return made[-1]

    monkeypatch.setattr(leaner, "lacking_by_ipu", lambda x: [x.lacking * TILES, x.on_other * TILES])
    monkeypatch.setattr(
        product_room, "product_rooms", lambda _, known: {**known, (0, f"p{len(known)}"): 0}
    )
    begin = leaner.WithRooms(programs[0], programs[0], {})
    found = leaner.with_smaller_products(begin, unclocked, compiled)
    assert len(made) == tried
    assert found.best is programs[best + 1]


def with_code(cycles: int, smaller_cycles: int, *, fits: bool) -> tuple[Any, Any]:
    """Return what stands for a draft that lacks memory, and for it with smaller code."""
    smaller = SimpleNamespace(
        fits=fits, estimate=lambda: SimpleNamespace(lower_bound_cycles=smaller_cycles)
    )
    draft = SimpleNamespace(
        fits=False, program=None, machine=None, assume_trips=None,
        memory_plan=SimpleNamespace(
            forms=SimpleNamespace(fastest=lambda: None), lacks_with_any_forms=False
        ),
        estimate=lambda: SimpleNamespace(lower_bound_cycles=cycles),
        with_chosen_forms=lambda: smaller,
    )  # fmt: skip
    return draft, smaller


@pytest.mark.parametrize(
    ("cycles", "smaller_cycles", "fits", "is_taken"),
    [
        (100, 101, True, True),
        (200, 150, True, True),  # faster than the draft that lacks memory
        (140, 150, True, False),  # which smaller products may make fit
        (200, 150, False, False),
    ],
)
def test_smaller_code_is_taken_at_once_if_it_is_fast_enough(
    cycles: int, smaller_cycles: int, fits: bool, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fastest exchanges each takes 100 cycles."""
    fastest = SimpleNamespace(lower_bound_cycles=100)
    monkeypatch.setattr(attempts, "step_charges", lambda *_: None)
    monkeypatch.setattr(attempts, "estimate", lambda *_: fastest)
    draft, smaller = with_code(cycles, smaller_cycles, fits=fits)
    tried = attempts.Attempts(cast(Module, None), unclocked, lambda *_: draft)
    assert tried.looked_at(draft) is (smaller if is_taken else draft)
    assert tried.fastest(draft) is (smaller if fits else draft)


@pytest.mark.parametrize(
    ("outline", "parted", "joined", "compiled", "planned", "chosen"),
    [
        ("on", (60, 5), (5, 0), [True, False], [False], False),  # products of 5 fit at once
        ("on", (60, 0), (70, 0), [True, False], [True], True),
        ("on", (60, 50), (70, 40), [True, False], [True, False], False),
        ("on", (0, 0), (0, 0), [True], [True], True),  # it fits: no other form is compiled
        ("auto", (60, 50), (5, 0), [True], [True], True),  # nothing is a function
        ("on", (100, 0), (90, 80), [True, False], [False], False),  # 100 is no less than before
    ],
)
def test_code_is_weighed_in_the_form_that_lacks_least(
    outline: str,
    parted: tuple[int, int],
    joined: tuple[int, int],
    compiled: list[bool],
    planned: list[bool],
    chosen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each form: what it lacks at first, and with smaller products; 100 without code's price."""
    forms, smaller = {True: parted, False: joined}, list[bool]()
    monkeypatch.setattr(leaner, "lacking_by_ipu", lambda x: [max(0, x.lacking) * TILES])
    first = lacks(100)
    made: list[bool] = []

    def program(attempt: attempts.Attempt) -> CompiledProgram:
        made.append(attempt.parts_reductions)
        return lacks(forms[made[-1]][0])

    def with_smaller_products(_: object, form: attempts.Attempt, *__: object) -> leaner.WithRooms:
        smaller.append(form.parts_reductions)
        least = lacks(forms[smaller[-1]][1])
        return leaner.WithRooms(least, least, {})

    monkeypatch.setattr(attempts, "may_weigh_code", lambda _: True)
    monkeypatch.setattr(attempts, "_with_smaller_products", with_smaller_products)
    tried = SimpleNamespace(program=program, phase=unclocked)
    search = SimpleNamespace(tried=lambda attempt: attempt())
    attempt, result = attempts._with_code_weighed(
        cast(attempts.Attempts, tried),
        attempts.Attempt(Options(outline=outline)),
        leaner.WithRooms(first, first, {}),
        first,
        cast(Any, search),
    )
    assert (made, smaller) == (compiled, planned)
    assert attempt.parts_reductions is chosen
    assert cast(Any, result.least).lacking == forms[chosen][1]
