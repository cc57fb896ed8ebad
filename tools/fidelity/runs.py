"""Networks in configurations that are published to run: do they fit, and how long do they take."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import hloipu
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.plan import MemoryPlan, kept_bytes
from hloipu_runtime.memory.regions import Region
from tools.fidelity.kept_outcomes import Asked, Outcome, kept_or_made
from tools.fidelity.measurements import Measurement
from tools.fidelity.predictions import Prediction, told

PATH = Path(__file__).with_name("runs.toml")
_ROOT = Path(__file__).resolve().parents[2]

NO_HOST: Mapping[str, int] = {
    "host.to_device_bytes_per_second": 10**15,
    "host.from_device_bytes_per_second": 10**15,
    "host.round_trip_nanoseconds": 0,
    "host.command_cycles": 0,
    "host.to_device_control_cycles_per_packet": 0,
    "host.from_device_control_cycles_per_packet": 0,
}
"""A host that takes no time, so that what is left is the device's."""

HOISTED = "copies kept through loops"
"""Of the exchange buffers of the fullest tile, those that outlast a turn of a loop."""


@dataclass(frozen=True, slots=True)
class Run:
    """A program that is known to fit."""

    name: str
    network: str
    """Arguments of `tools.models`."""
    options: Mapping[str, Any]
    """Of `hloipu.compile`."""
    source: str
    differs: str = ""
    """What of the published program the network leaves out."""
    quick: bool = False
    """Whether it is compiled within half a minute."""


@lru_cache(1)
def read_runs(path: Path = PATH) -> Mapping[str, Run]:
    """Return all runs by their names, in the order of the file."""
    content: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Run(name, **row) for name, row in content.items()}


def capacities() -> list[Measurement]:
    """Return what each run says of memory: no tile took more than it has.

    The tiles of a Bow have as much memory as those of a GC200, and programs for them are the same.
    """
    return [
        Measurement(
            f"fits-{run.name}",
            "bow",
            run.network,
            "fullest tile",
            1.0,
            "tile",
            f"graphcore/examples: {run.source}",
            "high",
            note=run.differs,
            run=run.name,
        )
        for run in read_runs().values()
    ]


def share_of_tile(x: Measurement) -> Prediction:
    """Return how many times its memory the fullest tile would need."""
    said = outcome(x)
    return Prediction(said.peak_bytes / said.available_bytes, f"{said.peak_bytes:,} bytes")


def rate(x: Measurement) -> Prediction:
    """Return samples in a second of the device's time."""
    said = outcome(x)
    return Prediction(x.samples / said.device_seconds, said.told)


def is_quick(x: Measurement) -> bool:
    """Whether a run is marked as quick, and measured with its own counts."""
    return read_runs()[x.run].quick and not x.micro_batches and not x.replicas


def outcome(x: Measurement) -> Outcome:
    """Return what hloipu says of the run that was measured."""
    return _outcome(asked_of(x))


def asked_of(x: Measurement) -> Asked:
    """Return what is compiled for a measurement of a run."""
    options = read_runs()[x.run].options
    return Asked(
        x.run,
        x.device,
        x.micro_batches or options.get("micro_batches", 1),
        x.replicas or options.get("replicas", 1),
    )


@lru_cache(128)
def _outcome(asked: Asked) -> Outcome:
    return kept_or_made(asked, lambda: _compiled(asked))


def _compiled(asked: Asked) -> Outcome:
    run = read_runs()[asked.run]
    counts = {"micro_batches": asked.micro_batches, "replicas": asked.replicas}
    options = {**run.options, **counts}
    program = hloipu.compile(
        network_text(run.network),
        target=asked.target,
        partials_type="f16",
        over_memory="allow",
        cache=False,
        set=dict(NO_HOST),
        **options,
    )
    report, spent = program.memory, program.estimate().spent
    parts = {kind.value: size for kind, size in report.peak.parts.items()}
    return Outcome(
        report.fits,
        report.peak.total_bytes,
        report.available_bytes,
        {**parts, HOISTED: _kept_through_loops(program.memory_plan)},
        spent.total.cycles / program.machine.chip.clock_hz,
        told(spent),
    )


@lru_cache(4)
def network_text(network: str) -> str:
    """Return the text of a network; JAX stays out of this process, whose memory and time count."""
    command = [sys.executable, "-m", "tools.models", *network.split()]
    return subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout


def _kept_through_loops(plan: MemoryPlan) -> int:
    """Return the bytes of the exchange buffers of the fullest tile that outlast a loop's turn."""
    ipu = max(plan.ipus, key=lambda one: int(one.needed_bytes.max()))
    fullest = int(ipu.needed_bytes.argmax())
    here, point = ipu.classes.grids_of(fullest), int(ipu.live.peak_point[fullest])
    turns = list(_turns(plan.liveness.region, point))
    return sum(
        kept_bytes(variable, plan.machine)
        for number, variable in enumerate(plan.program.variables)
        if variable.ipu == ipu.ipu
        and variable.mapping.tiles in here
        and plan.category(number) is Category.EXCHANGE_BUFFERS
        and any(
            first <= start and end <= last
            for first, last in plan.liveness.ranges[number]
            for start, end in turns
        )
    )


def _turns(region: Region, point: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the first and the last point of the bodies of loops that a point is in."""
    for item in region.items:
        first = start + item.offset
        if not first <= point < first + item.length:
            continue
        if item.repeats:
            yield first, first + item.length - 1
        for _, inner in item.children:
            yield from _turns(inner, point, first)
            first += inner.length
