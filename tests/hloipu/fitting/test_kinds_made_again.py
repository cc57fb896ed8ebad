"""Without being asked which values to make again, a step fits if it does with any that can be."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hloipu
from hloipu.fitting import attempts, leaner
from hloipu.fitting.attempts import Attempt, Attempts
from hloipu.options.table import Options
from hloipu_compiler.planners import product_room
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.watching import Search, doing
from tests.hloipu.fitting.test_leaner import TILE_BYTES, TILES, lacks, unclocked

KINDS = ("cheap", "blocks", "full")


def compiled(bytes_per_tile: int, recompute: str) -> CompiledProgram:
    """Return what stands for a program of a cut step that lacks so much of a tile."""
    found = cast(Any, lacks(bytes_per_tile))
    parts = {Category.TEMPORARIES: TILE_BYTES}
    found.options = {"recompute": recompute}
    found.code_memory = True
    found.program = SimpleNamespace(variables=(), functions={"f": None}, partitioning=None)
    found.memory = SimpleNamespace(peak=SimpleNamespace(parts=parts))
    found.memory_plan = SimpleNamespace(
        lacks_in_any_order=False,
        has_room_for_code=bytes_per_tile % 2 == 0,
        ipus=[SimpleNamespace(code_bytes=SimpleNamespace(max=lambda: TILE_BYTES // 2))],
    )
    found.estimate = lambda: SimpleNamespace(lower_bound_cycles=10)
    return cast(CompiledProgram, found)


def attempts_of(lacking: Callable[[Attempt], int]) -> Attempts:
    made: dict[Attempt, CompiledProgram] = {}

    def program(attempt: Attempt) -> CompiledProgram:
        attempt = replace(attempt, rooms=dict(attempt.rooms))
        key = cast(Attempt, repr(attempt))
        if key not in made:
            made[key] = compiled(lacking(attempt), attempt.options.recompute)
        return made[key]

    def itself(found: CompiledProgram) -> CompiledProgram:
        return found

    stand_in = SimpleNamespace(
        module=None, phase=unclocked, program=program,
        looked_at=itself, fastest=itself, finished=itself,
    )  # fmt: skip
    return cast(Attempts, stand_in)


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what programs lack from their stand-ins; each plan of products takes one more."""
    monkeypatch.setattr(leaner, "lacking_by_ipu", lambda x: [x.lacking * TILES])
    monkeypatch.setattr(leaner, "_is_cut", lambda _: True)
    monkeypatch.setattr(leaner, "_has_backward_stages", lambda _: True)
    monkeypatch.setattr(leaner, "gathers_again", lambda *_, **__: False)
    monkeypatch.setattr(attempts, "inlined_code_bytes", lambda _: 1 << 30)

    def rooms(_: object, known: dict[tuple[int, str], int]) -> dict[tuple[int, str], int]:
        return {**known, (0, f"p{len(known)}"): 0}

    monkeypatch.setattr(product_room, "product_rooms", rooms)


@pytest.mark.usefixtures("stood_in")
@pytest.mark.parametrize("outline", ["auto", "on", "off"])
def test_what_fits_if_asked_for_is_found_without(outline: str) -> None:
    found = 0
    for seed in range(300):

        def lacking(attempt: Attempt, seed: int = seed) -> int:
            """One in eight attempts fits; others lack up to a third of a tile."""
            lacks_bytes: int = Random(f"{seed} {attempt}").choice(
                [0, *range(1, TILE_BYTES // 3, 45)]
            )
            return lacks_bytes

        tried = attempts_of(lacking)

        def fits(recompute: str, tried: Attempts = tried) -> bool:
            options = Options(outline=outline, recompute=recompute)
            first = tried.program(Attempt(options))
            return attempts.fitting(tried, options, first, Search()).fits

        if any(map(fits, KINDS)):
            found += 1
            assert fits("auto"), seed
    assert 30 < found < 300


@pytest.mark.usefixtures("stood_in")
def test_what_is_asked_for_is_tried_as_if_nothing_had_been_tried_before() -> None:
    """As the attempts before ended, with code weighed, making all values again does not fit."""

    def lacking(attempt: Attempt) -> int:
        if attempt.options.recompute == "full":
            return 300 if attempt.weighs_code else 0
        return 290 if attempt.weighs_code else 299

    tried, options = attempts_of(lacking), Options(outline="on")
    program = attempts.fitting(tried, options, tried.program(Attempt(options)), Search())
    assert program.fits
    assert program.options["recompute"] == "full"


@pytest.mark.usefixtures("stood_in")
def test_a_kind_begins_with_the_attempt_that_was_made_of_it() -> None:
    """Where neither functions nor code changed what is tried, it is what was asked for."""
    tried, made = attempts_of(lambda _: 300), list[Attempt]()
    program = tried.program

    def counted(attempt: Attempt) -> CompiledProgram:
        made.append(attempt)
        return program(attempt)

    tried.program = counted  # type: ignore[method-assign]
    options = Options(outline="off")
    assert not attempts.fitting(tried, options, program(Attempt(options)), Search()).fits
    for kind in ("blocks", "full"):
        assert made.count(Attempt(replace(options, recompute=kind))) == 1


@pytest.mark.usefixtures("stood_in")
@pytest.mark.parametrize(("outline", "cycles"), [("auto", 10), ("on", 20)])
def test_functions_that_are_asked_for_stay(outline: str, cycles: int) -> None:
    """Blocks of their own are faster, and fit as well."""

    def lacking(attempt: Attempt) -> int:
        options = attempt.options
        return 0 if options.recompute == "full" else 200 if options.outline == "on" else 300

    tried = attempts_of(lacking)
    program = tried.program

    def timed(attempt: Attempt) -> CompiledProgram:
        has_functions = attempt.options.outline == "on"
        own = cast(Any, program(attempt))
        own.estimate = lambda: SimpleNamespace(lower_bound_cycles=20 if has_functions else 10)
        return cast(CompiledProgram, own)

    tried.program = timed  # type: ignore[method-assign]
    options = Options(outline=outline)
    fitted = attempts.fitting(tried, options, tried.program(Attempt(options)), Search())
    assert fitted.fits
    assert fitted.estimate().lower_bound_cycles == cycles


@pytest.mark.usefixtures("stood_in")
@pytest.mark.parametrize("last", ["full", "blocks", "shares"])
def test_what_lacks_least_is_there_when_time_is_up(last: str) -> None:
    tried, search = attempts_of(lambda attempt: 200 if attempt.rooms else 300), Search()
    program, share = tried.program, Options().available_memory_proportion

    def ended(attempt: Attempt) -> CompiledProgram:
        options = attempt.options
        name = options.recompute if options.available_memory_proportion == share else "shares"
        if name == last:
            search.end("interrupted")
        with doing("compiling"):
            return program(attempt)

    tried.program = ended  # type: ignore[method-assign]
    options = Options()
    left = attempts.fitting(tried, options, program(Attempt(options)), search)
    assert search.ended
    assert cast(Any, left).lacking == 200


LAYERS = "".join(
    f"""
  w{n} = f32[64,64] parameter({n + 1})
  p{n} = f32[8,64] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  x{n + 1} = f32[8,64] tanh(p{n})"""
    for n in range(8)
)
FORWARD = f"""HloModule forward
ENTRY e {{
  x0 = f32[8,64] parameter(0){LAYERS}
  ROOT r = f32[8,64] negate(x8)
}}
"""


def test_forward_stages_have_no_stages_or_blocks_to_make_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, program = list[str](), Attempts.program

    def noted(attempts: Attempts, attempt: Attempt) -> CompiledProgram:
        made.append(attempt.options.recompute)
        return program(attempts, attempt)

    def compiled(size: int) -> CompiledProgram:
        return hloipu.compile(
            FORWARD, target="tiny", cache=False, stages=2, micro_batches=2, over_memory="allow",
            set={"bytes_per_tile": size, "executable_bytes": size},
        )  # fmt: skip

    monkeypatch.setattr(Attempts, "program", noted)
    roomy = compiled(1 << 17)
    needed_bytes = max(int(x.needed_bytes.max()) for x in roomy.memory_plan.ipus)
    compiled((needed_bytes - 64) // 64 * 64)
    assert "cheap" in made
    assert not {"full", "blocks"} & {*made}
