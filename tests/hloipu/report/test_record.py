"""What a report shows adds up: cycles to the profile's, bytes to the allocator's."""

import itertools
from pathlib import Path
from typing import Any

import pytest

import hloipu
from hloipu.report.record import report_record
from hloipu.report.trace import Unfolded, events_of
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program.timetable import Timetable

SAMPLES = Path(__file__).parents[3] / "hlo_samples"
_MNIST = "mnist_train_step"
CASES: list[tuple[str, dict[str, Any]]] = [
    *((path.stem, {}) for path in sorted(SAMPLES.glob("*.hlo"))),
    (_MNIST, {"loop": 3, "feed": {"data": [4, 5]}}),
    (_MNIST, {"ipus": 2, "stages": 2, "micro_batches": 4, "loop": 2, "feed": {"data": [4, 5]}}),
    (_MNIST, {"ipus": 2, "stages": 2, "micro_batches": 4, "schedule": "sequential"}),
    (_MNIST, {"ipus": 2, "stages": 2, "micro_batches": 4, "io_tiles": 32, "loop": 2,
              "feed": {"data": [4, 5]}}),
    ("scanned_blocks_train_step", {"outline": "on"}),
]  # fmt: skip


def program_of(name: str, options: dict[str, Any]) -> CompiledProgram:
    text = SAMPLES / f"{name}.hlo"
    return hloipu.compile(text, target="gc200", over_memory="allow", cache=False, **options)


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: str(case)[:40])
@pytest.mark.thinned(2)
def test_totals_equal_their_parts(name: str, options: dict[str, Any]) -> None:
    program = program_of(name, options)
    record = report_record(program)
    profile, timeline = record["profile"], record["timeline"]
    # Cycles: of the timeline, of its entries put together, of instructions by kind.
    total = timeline["blocks"][timeline["root"]]["cycles"] * timeline["runs"]
    assert total == pytest.approx(profile["lower_bound_cycles"], abs=2)
    unfolded = Unfolded(timeline)
    for number, block in enumerate(timeline["blocks"]):
        if not block["cycles"]:  # it never runs
            continue
        parts = sum(unfolded.length_of(entry) for entry in block["entries"])
        assert parts == pytest.approx(block["cycles"], abs=2 + 1e-9 * block["cycles"]), number
    by_kind = {key: sum(kinds.values()) for key, kinds in record["origin_kinds"].items()}
    origins = dict(zip(profile["origins"]["name"], profile["origins"]["cycles"], strict=True))
    assert {key or "(program)": n for key, n in by_kind.items()} == {
        key: n for key, n in origins.items() if n
    }
    # Bytes: of every tile, of the peak, of what is live at it.
    memory = profile["memory"]
    tiles = sum(
        ipu["needed_bytes"][number] * count
        for ipu in record["tiles"]
        for number, count in ipu["classes"]
    )
    assert tiles == memory["total_bytes"]
    for ipu, live in zip(record["tiles"], record["liveness"], strict=True):
        for number, needed in enumerate(ipu["needed_bytes"]):
            assert sum(part[number] for part in ipu["parts"].values()) == needed
        at_peak = [
            tensor["bytes"]
            for tensor in live["tensors"]
            if any(first <= live["peak_point"] <= last for first, last in tensor["ranges"])
        ]
        assert not live["tensors_left_out"]
        assert live["fixed_bytes"] + sum(at_peak) + live["gap_bytes"] == live["needed_bytes"]
        highest = max(size for _, size in live["curve"])
        assert highest + live["always_live_bytes"] + live["gap_bytes"] == live["needed_bytes"]


def test_a_trace_has_every_cycle_on_every_level() -> None:
    program = program_of(_MNIST, CASES[-3][1] | {"loop": 50, "feed": {"data": [4, 5]}})
    record = report_record(program)
    timeline = record["timeline"]
    whole = timeline["blocks"][timeline["root"]]["cycles"]
    for most in (10, 1000, 10**6):
        events = events_of(timeline, most)
        assert len(events) <= most
        # The IPU that is busiest may wait, but the first event begins at 0 and the last ends last.
        assert min(event.begin for event in events) == 0
        assert max(event.end for event in events) == pytest.approx(whole, rel=1e-6)
        for ipu in range(2):
            mine = sorted((e.begin, e.end) for e in events if ipu in (e.ipus or (0, 1)))
            assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(mine))
    steps = [event for event in events if event.kind == "compute"]
    executed = sum(
        n
        for n, kind in zip(
            record["profile"]["steps"]["executions"],
            record["profile"]["steps"]["kind"],
            strict=True,
        )
        if kind == "compute"
    )
    assert len(steps) == executed


def test_slots_are_those_of_the_program() -> None:
    program = program_of(_MNIST, CASES[-4][1])
    record = report_record(program)
    row = record["profile"]["pipelines"][0]
    number, inner = next(
        (n, x) for n, x in enumerate(record["timeline"]["inner"]) if x["kind"] == "pipeline"
    )
    slots = Unfolded(record["timeline"])._slots(number)
    assert slots[-1] == pytest.approx(row["cycles"], abs=2)
    assert len(slots) - 1 == Timetable(4, 1, inner["micro_batches"]).slots
