"""What the report says about programs that one can count by hand."""

import json
from dataclasses import replace

import pytest

from hloipu.cli.result_text import memory_text
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.does_not_fit import DoesNotFit, require_fit
from hloipu_runtime.memory.plan import plan_memory
from hloipu_runtime.memory.remote_parts import RemoteCategory
from hloipu_runtime.memory.report import memory_report
from hloipu_runtime.memory.report_records import Bin, MemoryReport
from hloipu_runtime.program.mapping import Mapping, Tiles, whole
from hloipu_runtime.program.program import Program, Role
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

TINY = load_machine("tiny")


def on_tile_2(size: int) -> Mapping:
    return Mapping(Tiles((), (), 2), (whole(size),))


def small() -> Program:
    """Return a program whose tile 2 is fullest at its second step.

    State: 3 bytes on each tile; a and b: 400 bytes on tile 2; c: 200 bytes there, when b is gone.
    """
    make = ProgramBuilder()
    state = make.variable((12,), rows(4, 3), kind="s8", role=Role.STATE)
    make.stream_in(state)
    a = make.stream_in(make.variable((100,), on_tile_2(100)))
    b = make.add([a], make.variable((100,), on_tile_2(100)))
    make.stream_out(b)
    make.stream_in(make.variable((50,), on_tile_2(50)))
    return make.program(synced=False)


def test_peak_of_a_small_program() -> None:
    report = memory_report(plan_memory(small(), TINY), sources={"x1": "model.py:7"})
    assert report.fits
    peak = report.peak
    assert (peak.ipu, peak.tile, peak.step, peak.step_name) == (0, 2, "body/2", "add2")
    assert {category: size for category, size in peak.parts.items() if size} == {
        Category.VERTEX_CODE: 512,
        Category.CONTROL_CODE: 4 * 32 + 3 * 4,  # a vertex is a pointer, a call and a sync
        Category.EXCHANGE_CODE: 5 * 32,  # a packet for each stream, two for 400 bytes to the host
        Category.VERTEX_STATE: 8 + 2 * 4 + 4,
        Category.STACKS: 1024,
        Category.STATE: 3,
        Category.PARAMETERS: 400,  # a, which comes from the host
        Category.TEMPORARIES: 400,
        Category.ALIGNMENT: 5,
    }
    fixed = 512 + 160 + 140 + 20 + 1024
    assert peak.total_bytes == fixed + 8 + 800
    assert peak.always_live_bytes == fixed + 8
    # On the other tiles, the state lies above a place for two of 400 bytes that only one has.
    assert report.total_bytes == peak.total_bytes + 3 * (32 + 32 + 1024 + 8 + 800)
    assert report.parts[Category.GAPS] == 3 * 800
    assert [(c.name, c.size_bytes, c.source) for c in report.culprits] == [
        ("v1", 400, "model.py:7"),
        ("v2", 400, ""),
        ("v0", 8, ""),
    ]
    assert [c.always_live for c in report.culprits] == [False, False, True]
    assert (report.culprits[1].first_step, report.culprits[1].last_step) == ("body/2", "body/3")
    (ipu,) = report.ipus
    assert (ipu.peak_tile, ipu.peak_bytes, ipu.tiles_used) == (2, peak.total_bytes, 4)
    assert ipu.gap_bytes == peak.parts[Category.GAPS] == 0
    assert report.histogram[0] == Bin(0, 6553, 4)
    assert len(report.histogram) == 11


def test_fewer_culprits() -> None:
    report = memory_report(plan_memory(small(), TINY), culprits=1)
    assert [c.name for c in report.culprits] == ["v1"]
    assert report.culprits_left_out == 2


def test_buffers_of_exchanges_are_counted_apart() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((8,), rows(4, 2), role=Role.PARAMETER))
    buffer = make.copy(a, make.variable((8,), on_tile_2(8)))
    make.add([buffer], make.variable((8,), on_tile_2(8)))
    parts = memory_report(plan_memory(make.program(synced=False), TINY)).peak.parts
    assert parts[Category.EXCHANGE_BUFFERS] == 32
    assert parts[Category.TEMPORARIES] == 32
    constant = make.constant((3,), Mapping(Tiles((), (), 2), (whole(3),)))
    make.stream_out(constant)
    parts = memory_report(plan_memory(make.program(synced=False), TINY)).peak.parts
    assert (parts[Category.CONSTANTS], parts[Category.ALIGNMENT]) == (12, 4)


def full(elements: int) -> Program:
    make = ProgramBuilder()
    make.stream_in(make.variable((elements,), on_tile_2(elements), role=Role.STATE))
    return make.program(synced=False)


def test_a_tile_full_to_the_last_byte_fits() -> None:
    packets = 62  # of 1,024 bytes each
    room = (65_536 - 1024 - 32 - 32 * packets) // 4
    assert packets - 1 < 4 * room / 1024 <= packets
    report = memory_report(plan_memory(full(room), TINY))
    assert (report.fits, report.peak.total_bytes) == (True, 65_536)
    assert [one.tiles for one in report.histogram if one.tiles] == [3, 1]
    assert report.histogram[-1].tiles == 0
    require_fit(report)
    report = memory_report(plan_memory(full(room + 1), TINY))
    assert (report.fits, report.histogram[-1]) == (False, Bin(65_536, -1, 1))


def test_addresses_of_what_does_not_fit_go_on_above_the_code() -> None:
    plan = plan_memory(full(20_000), TINY)
    needed = int(plan.ipus[0].needed_bytes.max())
    assert (plan.fits, needed, plan.addresses) == (False, 83_584, (83_584 - 80_000,))


def test_what_does_not_fit_names_tile_step_and_variables() -> None:
    report = memory_report(plan_memory(full(20_000), TINY), sources={"x0": "model.py:3"})
    with pytest.raises(DoesNotFit) as caught:
        require_fit(report)
    error = caught.value
    assert (error.code, error.exit_code, error.report) == ("E1001", 5, report)
    assert "tile 2 of IPU 0 needs 83,584 bytes of 65,536 at body/0" in error.message
    assert "v0 f32[20000] takes 80,000 (model.py:3)" in error.message


def test_code_has_to_lie_in_the_executable_part() -> None:
    machine = load_machine("tiny", {"executable_bytes": "600"})
    report = memory_report(plan_memory(small(), machine))
    assert not report.fits
    assert (report.code_peak.tile, report.code_bytes) == (2, 512 + 160 + 140)
    with pytest.raises(DoesNotFit) as caught:
        require_fit(report)
    assert caught.value.code == "E1002"
    message = caught.value.message
    assert "tile 2 of IPU 0 needs 812 bytes for code, 212 more than the 600" in message
    assert "vertex code 512, exchange code 160, control code 140" in message
    assert "--outline on" in str(caught.value)
    without = memory_report(plan_memory(small(), machine, code_memory=False))
    assert without.fits
    assert (without.code_memory, without.code_bytes) == (False, 0)


def test_memory_that_a_program_may_not_use() -> None:
    machine = load_machine("tiny", {"reserved_bytes": "1000", "prefetch_slack_bytes": "36"})
    plan = plan_memory(full(10), machine)
    assert plan.available_bytes == 65_536 - 1036
    # 64,500 rounded down to the grain, less what the variable takes.
    assert plan.addresses == (64_496 - 40,)


def test_json() -> None:
    report = memory_report(plan_memory(small(), TINY))
    found = json.loads(json.dumps(report.to_json()))
    assert (found["schema"], found["version"]) == ("hloipu.memory", 1)
    assert sum(found["parts"].values()) == found["total_bytes"]
    assert found["peak"]["parts"]["temporaries"] == 400
    assert found["peak"]["parts"]["parameters"] == 400
    assert found["culprits"][0]["shape"] == [100]


@pytest.mark.parametrize("seed", range(4))
def test_the_same_program_gives_the_same_plan_and_report(seed: int) -> None:
    one, two = (plan_memory(random_program(seed, ipus=2), TINY) for _ in range(2))
    assert one.addresses == two.addresses
    assert json.dumps(memory_report(one).to_json()) == json.dumps(memory_report(two).to_json())


def test_a_program_without_steps() -> None:
    make = ProgramBuilder(ipus=2)
    make.constant((3,), Mapping(Tiles(), (whole(3),)), ipu=1)
    report = memory_report(plan_memory(make.program(synced=False), TINY))
    assert (report.peak.ipu, report.peak.total_bytes) == (1, 1024 + 16)
    assert (report.peak.step, report.peak.step_name) == ("body", "")


def told(report: MemoryReport, *advice: str) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as caught:
        require_fit(replace(report, fits=False), lambda: advice)
    return caught.value


def test_code_of_exchanges_is_told_where_it_takes_more_than_half() -> None:
    report = memory_report(plan_memory(small(), TINY), sources={"x1": "model.py:7"})
    codes = report.peak.parts[Category.EXCHANGE_CODE]
    assert codes == 160
    half, less = (replace(report, available_bytes=n) for n in (2 * codes, 2 * codes - 1))
    assert "code of exchanges" not in told(half).message
    assert "; code of exchanges takes 160, of these 64 for " in told(less).message
    assert told(less).message.count("model.py:7") == 1
    without = replace(less, exchange_culprits=())
    assert "code of exchanges" not in told(without).message
    named = replace(half, peak=half.peak._replace(step_name="dot.3"))
    assert "body/2 (dot.3);" in told(named).message
    assert "body/2;" in told(replace(half, peak=half.peak._replace(step_name=""))).message


def test_remote_memory_that_does_not_fit_is_told_of_the_ipu_with_most() -> None:
    report = memory_report(plan_memory(small(), TINY))
    (use,) = report.ipus
    kinds = {RemoteCategory.STATE: 700, RemoteCategory.WEIGHTS: 301}
    ipus = tuple(use._replace(ipu=n, remote=remote) for n, remote in enumerate(({}, kinds, kinds)))
    full = replace(report, ipus=ipus, remote_available_bytes=1000)
    assert full.fullest_beside.ipu == 1
    error = told(full, "do this", "or that")
    assert error.code == "E1003"
    assert "IPU 1 need 1,001 bytes of 1,000 (state 700, weights 301)" in error.message
    assert error.hint == "do this; or that; --over-memory=allow continues"
    assert "--offload off" in (told(full).hint or "")
    enough = replace(full, remote_available_bytes=1001)
    assert told(enough).code == "E1002"  # what is left of the reasons
    assert told(replace(full, available_bytes=report.peak.total_bytes)).code == "E1003"
    assert told(replace(full, available_bytes=report.peak.total_bytes - 1)).code == "E1001"


def test_of_instructions_with_equal_code_the_first_by_name_comes_first() -> None:
    make = ProgramBuilder()
    for _ in range(12):
        make.stream_in(make.variable((4,), on_tile_2(4)))
    report = memory_report(plan_memory(make.program(synced=False), TINY), culprits=12)
    names = [culprit.origin for culprit in report.exchange_culprits]
    assert {culprit.size_bytes for culprit in report.exchange_culprits} == {32}
    assert names == sorted(f"in{n}" for n in range(12))
    usual = memory_report(plan_memory(make.program(synced=False), TINY))
    assert len(usual.exchange_culprits) == 10


def test_gaps_are_what_placement_adds_to_what_is_live() -> None:
    plan = plan_memory(small(), TINY)
    memory = plan.ipus[0]
    widened = replace(memory, extent=memory.extent + 64)
    report = memory_report(replace(plan, ipus=(widened,)))
    assert report.peak.parts[Category.GAPS] == report.ipus[0].gap_bytes == 64
    found = report.to_json()
    assert found["peak"]["parts"]["gaps"] == found["ipus"][0]["gap_bytes"] == 64
    assert "of which 64 above what is live at once (gaps)" in memory_text(report)
