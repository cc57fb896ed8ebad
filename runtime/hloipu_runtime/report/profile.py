"""The profile: where the cycles of a run or an estimate go."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.report.change import Finding, Fitting
from hloipu_runtime.report.host import HostTime
from hloipu_runtime.report.pipelines import PipelineRow

SCHEMA = "hloipu.profile"
VERSION = 2

NO_ORIGIN = "(program)"
"""Stands for the instruction of steps that come from none."""

ONE_TILE_BYTES = 64 * 1024
"""Most that a vertex with a tile to itself takes in unremarked; more is to lie in rows on tiles."""


class StepRow(NamedTuple):
    """One step of the program, over the whole run."""

    path: str
    name: str
    """The instruction that it comes from; of several, that which took most."""
    kind: str
    codelet: str
    executions: int
    hidden_executions: int
    """Of these, those beside a slower branch; no total contains them."""
    cycles: int
    """Over all other executions."""
    assumed_cycles: int
    tiles: int
    ipus: tuple[int, ...]
    moved_bytes: int
    """Of one execution."""
    one_tile_bytes: int

    @property
    def is_gathered(self) -> bool:
        """Whether it gathers to one tile what should lie on several."""
        return self.one_tile_bytes > ONE_TILE_BYTES


class OriginRow(NamedTuple):
    """One instruction: its part of all steps."""

    name: str
    source: str
    """Place in the user's program; empty where unknown."""
    steps: int
    cycles: int
    assumed_cycles: int
    host_cycles: int
    """Of these, cycles of transfers from and to the host."""


class LoopRow(NamedTuple):
    """One loop of the program."""

    path: str
    name: str
    is_counted: bool
    entered: int
    turns: int
    """Over all times it was entered; of an estimate where data decides, at least."""


class IpuRow(NamedTuple):
    """Cycles of one IPU; they add up to the total."""

    ipu: int
    compute: int
    exchange: int
    sync: int
    remote: int
    """Copies from and to the memory beside it."""
    host: int
    idle: int
    """While only others work, or the host has no data."""


@dataclass(frozen=True)
class Profile:
    """All of it. Totals are sums of their parts: over buckets, steps, instructions, IPUs."""

    program: str
    mode: str
    machine: str
    clock_hz: int
    tiles_per_ipu: int
    ipus: int
    overrides: Mapping[str, int]
    """Numbers of the machine that the user set, by key."""
    options: Mapping[str, Any]
    runs: int
    total_cycles: int | None
    """None where data decides and nothing ran."""
    lower_bound_cycles: int
    assumed_cycles: int
    by_bucket: Mapping[str, int]
    """They add up to the lower bound, which is the total where that is known."""
    unknown: tuple[Mapping[str, str], ...]
    """Loops and choices that keep the total from being known."""
    steps: tuple[StepRow, ...]
    origins: tuple[OriginRow, ...]
    """Most cycles first."""
    loops: tuple[LoopRow, ...]
    by_ipu: tuple[IpuRow, ...]
    pipelines: tuple[PipelineRow, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Record of the memory plan, empty without one."""
    calls: Mapping[str, Any] = field(default_factory=dict)
    """Of a program that stays on the device: calls by the host, steps, and what each costs."""
    feeds: Mapping[str, Any] = field(default_factory=dict)
    """Of a program that the host feeds: which of the two is slower, and by how much."""
    queues: tuple[Mapping[str, Any], ...] = ()
    """Each queue of it: elements, rates, and who waits for whom."""
    device: Mapping[str, int] = field(default_factory=dict)
    """Cycles by bucket that the device takes on its own, as if its host took no time."""
    device_assumed_cycles: int = 0
    """Of these, cycles that rest on assumed numbers."""
    host: HostTime = HostTime()
    """What the host adds to that."""
    findings: tuple[Finding, ...] = ()
    """What keeps it slow or large, the dearest first; none where nobody looked."""
    fitting: Fitting | None = None
    """What makes it fit, where it does not and somebody looked."""
    replicas: int = 1
    """Copies of the program, each on as many IPUs, at the same time."""
    partitions: int = 1
    """Of each replica, likewise."""
    hosts: int = 0
    """That share the replicas; 0: it was not said."""
    links: Mapping[str, int] = field(default_factory=dict)
    """Cycles of transfers between IPUs, by kind of link; empty where there are none."""

    @property
    def seconds(self) -> float | None:
        """Simulated time; None where the total is unknown."""
        return None if self.total_cycles is None else self.total_cycles / self.clock_hz

    @property
    def device_cycles(self) -> int:
        """Cycles that the device takes on its own; where data decides, at least."""
        return sum(self.device.values())

    @property
    def tile_use(self) -> float:
        """Share of the tiles that take part in computing and exchanging, weighted by cycles."""
        working = [row for row in self.steps if row.kind in ("compute", "exchange")]
        cycles = sum(row.cycles for row in working)
        tiles = self.tiles_per_ipu * self.ipus
        return sum(row.cycles * row.tiles for row in working) / (cycles * tiles) if cycles else 0.0

    @property
    def gathered(self) -> tuple[StepRow, ...]:
        """Steps that gather to one tile what should lie on several."""
        return tuple(row for row in self.steps if row.is_gathered)

    def record(self) -> dict[str, Any]:
        """Return the profile as JSON data; `docs/profile.md` tells what each key holds."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "program": self.program,
            "mode": self.mode,
            "machine": {
                "name": self.machine,
                "clock_hz": self.clock_hz,
                "tiles_per_ipu": self.tiles_per_ipu,
                "ipus": self.ipus,
                "replicas": self.replicas,
                "partitions": self.partitions,
                "hosts": self.hosts,
                "overrides": dict(sorted(self.overrides.items())),
            },
            "options": dict(sorted(self.options.items())),
            "runs": self.runs,
            "calls": dict(self.calls),
            "feeds": dict(self.feeds),
            "queues": [dict(queue) for queue in self.queues],
            "total_cycles": self.total_cycles,
            "lower_bound_cycles": self.lower_bound_cycles,
            "assumed_cycles": self.assumed_cycles,
            "device_cycles": self.device_cycles,
            "device_assumed_cycles": self.device_assumed_cycles,
            "device_by_bucket": dict(self.device),
            "host": self.host._asdict() | {"each_run_cycles": self.host.each_run_cycles},
            "seconds": self.seconds,
            "tile_use": self.tile_use,
            "by_bucket": dict(self.by_bucket),
            "link_cycles": dict(self.links),
            "by_ipu": [row._asdict() for row in self.by_ipu],
            "unknown": [dict(item) for item in self.unknown],
            "steps": [row._asdict() | {"ipus": list(row.ipus)} for row in self.steps],
            "origins": [row._asdict() for row in self.origins],
            "loops": [row._asdict() for row in self.loops],
            "pipelines": [row.record() for row in self.pipelines],
            "one_tile_gathers": [row.path for row in self.gathered],
            "memory": dict(self.memory),
            "findings": [finding.record() for finding in self.findings],
            "fitting": None if self.fitting is None else self.fitting.record(),
        }
