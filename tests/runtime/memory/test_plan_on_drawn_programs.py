"""Memory plans against the slow referee: no byte is lost, no memory is wasted."""

from random import Random

import pytest

from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.memory.plan import NO_ADDRESS, MemoryPlan, least_memory, plan_memory
from hloipu_runtime.memory.report import memory_report
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Exchange
from tests.support.memory_checker import (
    bytes_of,
    check_memory,
    messages_of,
    misplaced,
    most_live,
    overlaps,
    tiles_of,
    trace,
)
from tests.support.random_programs import random_program

TINY = load_machine("tiny")
CRAMPED = load_machine("tiny", {"executable_bytes": "32"})
"""Code is so dear that all that can be rearranged is."""


def drawn(seed: int) -> Program:
    return random_program(seed, tiles=4, ipus=1 + seed % 2, steps=14)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs_are_proved(seed: int) -> None:
    assert faults_of(drawn(seed), 4) == []


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_overwritten_while_it_is_needed(seed: int) -> None:
    program = drawn(seed)
    plan = plan_memory(program, TINY)
    assert overlaps(program, plan.addresses, Random(seed)) == []


@pytest.mark.parametrize("seed", range(40))
def test_plan_is_tight(seed: int) -> None:
    """At least what a run needs is counted live; placement adds little to what is live."""
    program = drawn(seed)
    plan = plan_memory(program, TINY)
    for (ipu, tile), size in most_live(program, TINY, Random(seed)).items():
        memory = plan.ipus[ipu]
        assert memory.live.most_bytes[memory.classes.of_tile[tile]] >= size
    least = least_memory(program, TINY)
    assert set(least.addresses) == {NO_ADDRESS}
    for memory, before in zip(plan.ipus, least.ipus, strict=True):
        assert (memory.gap_bytes >= 0).all()
        assert (memory.needed_bytes - memory.gap_bytes == before.needed_bytes).all()
        assert int(memory.needed_bytes.max()) <= 1.1 * int(
            (memory.floor + memory.live.most_bytes).max()
        )


@pytest.mark.parametrize("seed", range(40))
def test_variables_lie_above_code_at_whole_grains(seed: int) -> None:
    program = drawn(seed)
    plan = plan_memory(program, TINY)
    assert misplaced(program, plan, plan.addresses) == []


@pytest.mark.parametrize("seed", range(6))
def test_the_referee_sees_misplaced_variables(seed: int) -> None:
    """Each variable in turn is put off the grain, into code, or past the end of the memory."""
    program = drawn(seed)
    plan = plan_memory(program, TINY)
    assert plan.fits
    for number, variable in enumerate(program.variables):
        address = plan.addresses[number]
        if address == NO_ADDRESS:
            continue
        memory = plan.ipus[variable.ipu]
        floor = int(memory.floor[memory.classes.members[variable.mapping.tiles]].max())
        grain = TINY.memory.allocation_grain_bytes
        places = {
            "no multiple": address + 1,
            "in code": floor - grain,
            "ends past": plan.available_bytes // grain * grain
            - bytes_of(variable) // grain * grain
            + grain,
        }
        for fault, place in places.items():
            moved = [*plan.addresses[:number], place, *plan.addresses[number + 1 :]]
            assert any(fault in found for found in misplaced(program, plan, moved))


@pytest.mark.parametrize("seed", range(20))
def test_parts_add_up(seed: int) -> None:
    report = memory_report(plan_memory(drawn(seed), TINY))
    assert sum(report.parts.values()) == report.total_bytes
    assert sum(use.total_bytes for use in report.ipus) == report.total_bytes
    for peak in (report.peak, report.code_peak):
        assert sum(peak.parts.values()) == peak.total_bytes
        assert peak.always_live_bytes + peak.not_always_live_bytes == peak.total_bytes
        assert min(peak.parts.values()) >= 0
    assert sum(one.tiles for one in report.histogram) == 4 * len(report.ipus)


@pytest.mark.parametrize("seed", range(40))
def test_messages_lie_apart_from_all_that_lives(seed: int) -> None:
    check_memory(drawn(seed), CRAMPED, seed)


def test_drawn_programs_have_messages() -> None:
    counts = [len(messages_of(plan_memory(drawn(seed), CRAMPED))) for seed in range(12)]
    assert sum(count > 0 for count in counts) >= 4


def test_the_referee_sees_misplaced_messages() -> None:
    """Messages are put where what they are made of lies, or what is made of them."""
    tried = caught = 0
    for seed in range(12):
        program = drawn(seed)
        plan = plan_memory(program, CRAMPED)
        for ipu, message in messages_of(plan)[:2]:
            if not isinstance(message.step, Exchange):
                continue
            transfer = message.step.transfers[0]
            if not any(message.step is step for step in program.body.steps):
                continue
            for variable in (transfer.source, transfer.destination):
                where = program.variables[variable]
                if (where.ipu, where.mapping.tiles) != (ipu, message.tiles):
                    continue
                wrong = message._replace(address=plan.addresses[variable])
                tried += 1
                caught += bool(
                    overlaps(program, plan.addresses, Random(seed), messages=[(ipu, wrong)])
                )
    assert caught == tried >= 5


@pytest.mark.parametrize("seed", range(12))
def test_the_referee_sees_wrong_plans(seed: int) -> None:
    """Two variables that are live at once are put at one address: some run must notice."""
    program = drawn(seed)
    plan = plan_memory(program, TINY)
    draw = Random(seed)
    caught = 0
    for first, second in colliding(plan, draw)[:4]:
        addresses = list(plan.addresses)
        addresses[second] = addresses[first]
        caught += bool(overlaps(program, addresses, Random(seed)))
    assert caught == 4


def colliding(plan: MemoryPlan, draw: Random) -> list[tuple[int, int]]:
    """Return pairs of variables with a tile in common that one step reads, in random order."""
    variables = plan.program.variables
    tiles = [set(tiles_of(x.mapping)) for x in variables]
    found = set()
    for moment in trace(plan.program, plan.program.body, draw):
        for first in moment.reads:
            for second in moment.reads | moment.writes:
                if first == second or variables[first].ipu != variables[second].ipu:
                    continue
                if tiles[first] & tiles[second] and bytes_of(variables[second]):
                    found.add((first, second))
    pairs = sorted(found)
    draw.shuffle(pairs)
    return pairs
