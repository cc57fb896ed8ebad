"""Forms of all exchanges of a program together, against every choice of them."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from hloipu_runtime.costs.forms import phases
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.memory.chosen_forms import with_chosen_forms
from hloipu_runtime.memory.plan import plan_memory
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Call, Exchange, Repeat, Sequence
from tests.support.program_builder import ProgramBuilder, blocks

SHAPE = (64, 64)


def transposing(*trips: int, kept_bytes: int = 0) -> Program:
    """Return a program with copies from rows to columns that run so often.

    The first in a loop, others in functions called from one. `kept_bytes`: state on a tile.
    """
    make = ProgramBuilder()
    if kept_bytes:
        on_all = blocks((4, kept_bytes // 4), (4, 1))
        make.stream_in(make.variable((4, kept_bytes // 4), on_all, role=Role.STATE))
    in_rows = make.stream_in(make.variable(SHAPE, blocks(SHAPE, (4, 1))))
    for number, count in enumerate(trips):
        with make.block() as steps:
            make.copy(in_rows, make.variable(SHAPE, blocks(SHAPE, (1, 4))))
        if number == 0:
            make.emit(Repeat(count, Sequence(tuple(steps)), ()))
        else:
            make.functions[f"f{number}"] = Sequence(tuple(steps))
            make.functions[f"g{number}"] = Sequence((Call(f"f{number}"),))
            for _ in range(count % 10):
                make.emit(Call(f"f{number}"))
            make.emit(Repeat(count // 10, Sequence((Call(f"g{number}"),) * 10), ()))
    return make.program(synced=False)


def test_what_runs_is_counted_through_loops_and_calls() -> None:
    counts = [
        runs for phase, runs in phases(transposing(7, 33, 2040)) if isinstance(phase, Exchange)
    ]
    assert sorted(counts) == [7, 33, 2040]


@cache
def least_cycles(trips: tuple[int, ...], kept_bytes: int, executable_bytes: int) -> int | None:
    """Return the cycles of the fastest forms with which a program fits, by trying all."""
    program = transposing(*trips, kept_bytes=kept_bytes)
    machine = load_machine("tiny", {"executable_bytes": str(executable_bytes)})
    plan = plan_memory(program, machine)
    fastest = plan.forms.fastest()
    runs = {t: n for x, n in phases(program) if isinstance(x, Exchange) for t in x.transfers}
    fitting = [
        sum(runs[t] * form.cycles for t, form in zip(runs, some, strict=True))
        for some in product(*map(fastest.choices, runs))
        if plan.with_forms(fastest.with_smaller(dict(zip(runs, some, strict=True)))).placed().fits
    ]
    return min(fitting, default=None)


@pytest.mark.parametrize("trips", [(40, 1), (1, 40), (3, 2048)])
@pytest.mark.parametrize(
    ("first_sizes", "steps"), [((0, 5_500), (0, -350)), ((48_000, 8_192), (1_000, 0))]
)
def test_no_other_forms_that_fit_take_fewer_cycles(
    trips: tuple[int, ...], first_sizes: tuple[int, int], steps: tuple[int, int]
) -> None:
    """State grows, or the memory for code shrinks, until a tile is full, and beyond."""
    seen = set()
    for number in range(14):
        sizes = first_sizes[0] + number * steps[0], first_sizes[1] + number * steps[1]
        program = transposing(*trips, kept_bytes=sizes[0])
        machine = load_machine("tiny", {"executable_bytes": str(sizes[1])})
        plan = with_chosen_forms(plan_memory(program, machine))
        least = least_cycles(trips, *sizes)
        assert plan.fits == (least is not None)
        taken = sum(
            runs * carried.form.cycles
            for exchange, runs in phases(program)
            if isinstance(exchange, Exchange)
            for carried in map(plan.forms.of, exchange.transfers)
            if carried is not None
        )
        assert least is None or taken == least
        seen.add(least)
    assert None in seen
    assert len(seen) > 2


def test_no_forms_make_room_for_variables_that_have_none() -> None:
    """State grows until a tile is full of it; with the most messages first."""
    seen = set()
    for kept_bytes in range(40_000, 68_000, 1_000):
        fastest = plan_memory(transposing(3, 20, kept_bytes=kept_bytes), load_machine("tiny"))
        copies = {
            t for x, _ in phases(fastest.program) if isinstance(x, Exchange) for t in x.transfers
        }
        buffered = {
            t: max(
                fastest.forms.choices(t),
                key=lambda x: x.receiving.buffer_bytes + x.sending.buffer_bytes,
            )
            for t in copies
        }
        plan = fastest.with_forms(fastest.forms.with_smaller(buffered))
        live_bytes = max(
            sum(
                variable.bytes_per_tile
                for variable, ranges in zip(
                    plan.program.variables, plan.liveness.ranges, strict=True
                )
                if 0 in variable.mapping.tiles.numbers and any(a <= at <= b for a, b in ranges)
            )
            for at in range(plan.liveness.points)
        )
        (ipu,) = plan.ipus
        most = int(ipu.live.most_bytes.max())
        assert plan.lacks_with_any_forms == (live_bytes > plan.available_bytes)
        if plan.lacks_with_any_forms:
            assert least_cycles((3, 20), kept_bytes, 65_536) is None
            assert with_chosen_forms(plan) is plan
        seen.add((plan.lacks_with_any_forms, most > plan.available_bytes))
    assert seen == {(False, False), (False, True), (True, True)}


def test_what_rearranges_takes_no_memory_of_code_but_its_own() -> None:
    """Twenty copies, all with the least code, whose vertices have state elsewhere."""
    program = transposing(*(1,) * 20)
    roomy = load_machine("tiny", {"executable_bytes": "65536"})
    plan = plan_memory(program, roomy)
    copies = {t for x, _ in phases(program) if isinstance(x, Exchange) for t in x.transfers}
    smallest = {
        t: min(plan.forms.choices(t), key=lambda x: x.sending.code_bytes + x.receiving.code_bytes)
        for t in copies
    }
    (ipu,) = plan.with_forms(plan.forms.with_smaller(smallest)).ipus
    for spare_bytes, fits in ((0, True), (-1, False)):
        least = int(ipu.code_bytes.max()) + spare_bytes
        machine = load_machine("tiny", {"executable_bytes": str(least)})
        plan = plan_memory(program, machine)
        fastest = plan.with_forms(plan.forms.fastest()).placed()
        assert with_chosen_forms(fastest).fits is fits


def test_an_ipu_whose_forms_stay_keeps_its_plan() -> None:
    """Both IPUs make columns of rows, the second at last by the form with most messages."""
    make = ProgramBuilder(ipus=2)
    for ipu in range(2):
        in_rows = make.stream_in(make.variable(SHAPE, blocks(SHAPE, (4, 1)), ipu=ipu))
        make.copy(in_rows, make.variable(SHAPE, blocks(SHAPE, (1, 4)), ipu=ipu))
    plan = plan_memory(make.program(synced=False), load_machine("tiny"))
    copies = [t for x, _ in phases(plan.program) if isinstance(x, Exchange) for t in x.transfers]
    (transfer,) = (t for t in copies if plan.program.variables[t.destination].ipu == 1)
    carried = plan.forms.of(transfer)
    assert carried is not None
    others = [form for form in plan.forms.choices(transfer) if form != carried.form]
    buffered = max(others, key=lambda form: form.receiving.buffer_bytes)
    forms = plan.forms.with_smaller({transfer: buffered})
    changed = plan.with_forms(forms).placed()
    anew = replace(plan, ipus=()).with_forms(forms).placed()
    assert changed.addresses == anew.addresses
    assert changed.ipus[1].charges != plan.ipus[1].charges
    for before, found, expected in zip(plan.ipus, changed.ipus, anew.ipus, strict=True):
        assert (found.placement is before.placement) == (found.ipu == 0)
        assert found.messages == expected.messages
        assert (found.needed_bytes == expected.needed_bytes).all()
