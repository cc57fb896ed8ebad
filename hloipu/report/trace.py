"""Traces for Perfetto and Chrome: a program's timeline, unfolded up to a size limit.

The form is the Trace Event Format of Chrome (complete events, `ph` X), which Perfetto's UI reads.
An event lasts as long as its step; what is shorter than the finest level that fits is drawn as one
event for several steps, slots or iterations, so that every cycle of the program is in the trace.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program.timetable import Timetable
from hloipu_runtime.report.timeline import full_timeline

MOST_EVENTS = 400_000
"""Perfetto's UI opens as many in seconds; they take about 4 MB compressed."""
_COARSEST_LEVELS = 60
"""Doublings of the shortest event that is drawn: far more than a program can need."""


class Event(NamedTuple):
    """Something on some IPUs; times in cycles. `kind` is that of a step, or `several`."""

    begin: float
    end: float
    name: str
    kind: str
    ipus: Sequence[int]
    where: str
    """Loops, positions and micro-batches around it."""


class Unfolded:
    """The events of a timeline record that last at least `least` cycles, shorter ones together."""

    def __init__(self, timeline: Mapping[str, Any], least: float = 0.0) -> None:
        self.timeline = timeline
        self.least = least
        self.blocks: list[dict[str, Any]] = timeline["blocks"]
        self.inner: list[dict[str, Any]] = timeline["inner"]

    def events(self) -> Iterator[Event]:
        """Yield them in the order of the program."""
        root, runs = self.timeline["root"], self.timeline["runs"]
        length = self.blocks[root]["cycles"]
        if length < self.least:
            yield Event(
                0, runs * length, f"{runs:,} runs", "several", self.blocks[root]["ipus"], ""
            )
            return
        for run in range(runs):
            yield from self._block(root, run * length, (), f"run {run}" if runs > 1 else "")

    def length_of(self, entry: int) -> float:
        """Return the cycles of one execution of a step or of what is inside."""
        if entry >= 0:
            return float(self.timeline["step_cycles"][entry])
        inner = self.inner[~entry]
        lengths = [self.blocks[block]["cycles"] for block in inner["blocks"]]
        if inner["kind"] == "together":
            return float(max(lengths, default=0))
        if inner["kind"] == "pipeline":
            return self._slots(~entry)[-1]
        return float(sum(n * times for n, times in zip(lengths, inner["times"], strict=True)))

    def _block(self, number: int, begin: float, ipus: Sequence[int], where: str) -> Iterator[Event]:
        block = self.blocks[number]
        if block["cycles"] < self.least:
            yield self._several(begin, begin + block["cycles"], block["ipus"] or ipus, where)
            return
        at, pending = begin, begin
        for entry in block["entries"]:
            until = at + self.length_of(entry)
            if until - at < self.least:
                if until - pending >= self.least:
                    yield self._several(pending, until, ipus, where)
                    pending = until
                at = until
                continue
            if at > pending:
                yield self._several(pending, at, ipus, where)
            if entry >= 0:
                yield self._step(entry, at, until, ipus, where)
            else:
                yield from self._inside(~entry, at, until, ipus, where)
            at = pending = until
        if at > pending:
            yield self._several(pending, at, ipus, where)

    def _step(self, step: int, begin: float, end: float, ipus: Sequence[int], where: str) -> Event:
        timeline = self.timeline
        kind = timeline["step_kinds"][step]
        name = timeline["step_names"][step] or kind
        return Event(begin, end, name, kind, timeline["step_ipus"][step] or ipus, where)

    def _several(self, begin: float, end: float, ipus: Sequence[int], where: str) -> Event:
        return Event(begin, end, where or "several steps", "several", ipus, where)

    def _inside(
        self, number: int, begin: float, end: float, ipus: Sequence[int], where: str
    ) -> Iterator[Event]:
        inner = self.inner[number]
        named = " / ".join(text for text in (where, inner["name"]) if text)
        if inner["kind"] == "together":
            for block in inner["blocks"]:
                yield from self._block(block, begin, self.blocks[block]["ipus"], named)
        elif inner["kind"] == "pipeline":
            yield from self._pipeline(number, begin, named)
        elif inner["kind"] in ("repeat", "while"):
            yield from self._loop(inner, begin, end, ipus, named)
        else:
            at = begin
            for block, times in zip(inner["blocks"], inner["times"], strict=True):
                if times > 0:
                    yield from self._block(block, at, ipus, named)
                at += self.blocks[block]["cycles"] * times

    def _loop(
        self, inner: Mapping[str, Any], begin: float, end: float, ipus: Sequence[int], where: str
    ) -> Iterator[Event]:
        times = inner["times"][-1]
        turn = (end - begin) / times if times else 0.0
        if turn < self.least or times < 1:
            if end > begin:
                yield self._several(begin, end, ipus, f"{where}: {times:,g} iterations")
            return
        for number in range(ceil(times)):
            at = begin + number * turn
            for block in inner["blocks"]:
                yield from self._block(block, at, ipus, f"{where} #{number}")
                at += self.blocks[block]["cycles"]

    @cached_property
    def _known_slots(self) -> dict[int, list[float]]:
        return {}

    def _table(self, inner: Mapping[str, Any]) -> Timetable:
        count = len(inner["ipus"])
        return Timetable(count, inner["interval"], inner["micro_batches"], inner["group"])

    def _slots(self, number: int) -> list[float]:
        """Return where each slot of a pipeline begins, and where the last ends."""
        known = self._known_slots.get(number)
        if known is None:
            inner = self.inner[number]
            table = self._table(inner)
            count = table.count * table.positions if table.group > 1 else table.slots
            ends = inner["slot_end_cycles"] / count if count else 0.0
            lengths: dict[tuple[int, ...], float] = {}
            known = [0.0]
            for slot in range(count):
                active = table.active(slot)
                if active not in lengths:
                    lengths[active] = self._slot_length(inner, active)
                known.append(known[-1] + lengths[active] + ends)
            self._known_slots[number] = known
        return known

    def _slot_length(self, inner: Mapping[str, Any], active: Sequence[int]) -> float:
        cycles_by_chassis: dict[int, float] = {}
        for place, transfer in enumerate(inner["beside"]):
            if transfer["position"] in active:
                block = inner["blocks"][len(inner["ipus"]) + place]
                spent = (
                    cycles_by_chassis.get(transfer["chassis"], 0.0) + self.blocks[block]["cycles"]
                )
                cycles_by_chassis[transfer["chassis"]] = spent
        ends = [end for _, _, end in self._starts(inner, active)]
        return max(0.0, *ends, *cycles_by_chassis.values())

    def _starts(
        self, inner: Mapping[str, Any], active: Sequence[int]
    ) -> list[tuple[int, float, float]]:
        """Return when positions of a slot work: those of an IPU take turns, later ones first."""
        free: dict[int, float] = {}
        starts = []
        for position in reversed(active):
            begin = max((free.get(ipu, 0.0) for ipu in inner["ipus"][position]), default=0.0)
            end = begin + self.blocks[inner["blocks"][position]]["cycles"]
            free.update(dict.fromkeys(inner["ipus"][position], end))
            starts.append((position, begin, end))
        return starts

    def positions(self, number: int) -> Iterator[tuple[float, float, int, int]]:
        """Yield begin, end, position and micro-batch of all work of the inner record `number`."""
        inner, slots = self.inner[number], self._slots(number)
        table = self._table(inner)
        for slot, begin in enumerate(slots[:-1]):
            for position, start, end in self._starts(inner, table.active(slot)):
                batch = table.micro_batch(position, slot)
                yield begin + start, begin + end, position, -1 if batch is None else batch

    def _pipeline(self, number: int, begin: float, where: str) -> Iterator[Event]:
        inner, slots = self.inner[number], self._slots(number)
        table = self._table(inner)
        everyone = sorted({ipu for ipus in inner["ipus"] for ipu in ipus})
        slot = 0
        while slot < len(slots) - 1:
            until = slot + 1
            if slots[until] - slots[slot] < self.least:
                while until < len(slots) - 1 and slots[until] - slots[slot] < self.least:
                    until += 1
                yield self._several(begin + slots[slot], begin + slots[until], everyone,
                                    f"{where}: slots {slot:,} to {until - 1:,}")  # fmt: skip
                slot = until
                continue
            active = table.active(slot)
            for position, start, _ in self._starts(inner, active):
                batch = table.micro_batch(position, slot)
                name = f"{inner['names'][position]} of micro-batch {batch}"
                block, ipus = inner["blocks"][position], inner["ipus"][position]
                yield from self._block(block, begin + slots[slot] + start, ipus, name)
            slot = until


def events_of(timeline: Mapping[str, Any], most: int = MOST_EVENTS) -> list[Event]:
    """Return at most `most` events of a timeline, on the finest level that has so few."""
    length = timeline["blocks"][timeline["root"]]["cycles"] * timeline["runs"]
    least = 0.0
    for _ in range(_COARSEST_LEVELS):
        events = list(islice(Unfolded(timeline, least).events(), most + 1))
        if len(events) <= most:
            return events
        least = 2 * least or max(1.0, length / (1000 * most))
    return events[:most]


@checked
def write_trace(program: CompiledProgram, path: str | Path, *, most: Number = MOST_EVENTS) -> None:
    """Write when each step of a program runs on each IPU, by estimate, for ui.perfetto.dev.

    `most`: events at most; what is too short for that is joined. `hloipu trace` writes the same.
    Raises UsageError E3004 where the file cannot be written.
    """
    record = program_trace(program, most)
    with replacing(Path(path)) as stream:
        stream.write(trace_file(record))


def program_trace(program: CompiledProgram, most: int = MOST_EVENTS) -> dict[str, Any]:
    """Return the trace of a program's estimate."""
    timeline = full_timeline(program.costs, program.estimate().counts)
    clock_hz, ipus = program.machine.chip.clock_hz, program.program.ipus
    return trace_record(timeline, clock_hz=clock_hz, ipus=ipus, most=most)


def trace_record(
    timeline: Mapping[str, Any], *, clock_hz: int, ipus: int, most: int = MOST_EVENTS
) -> dict[str, Any]:
    """Return a timeline in the Trace Event Format; times in microseconds, a process an IPU."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": ipu, "tid": 0, "args": {"name": f"IPU {ipu}"}}
        for ipu in range(ipus)
    ]
    per_cycle = 1e6 / clock_hz
    for event in events_of(timeline, most):
        if event.end <= event.begin:
            continue
        for ipu in event.ipus or range(ipus):
            events.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": event.kind,
                    "pid": ipu,
                    "tid": 0,
                    "ts": event.begin * per_cycle,
                    "dur": (event.end - event.begin) * per_cycle,
                    "args": {"cycles": event.end - event.begin, "where": event.where},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clock_hz": clock_hz}}


def trace_file(record: Mapping[str, Any]) -> bytes:
    """Return a trace as a gzip file of JSON, which Perfetto opens as it is."""
    return gzip.compress(json.dumps(record, separators=(",", ":")).encode(), mtime=0)
