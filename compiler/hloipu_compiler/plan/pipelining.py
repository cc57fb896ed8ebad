"""Pipeline requests and decisions: micro-batches, stages, update."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

from hloipu_compiler.plan.schedule import GROUPED, Schedule
from hloipu_runtime.frozen import dataclass

SUM, MEAN, RUNNING_MEAN = "sum", "mean", "running_mean"
ON, OFF, AUTO = "on", "off", "auto"
BATCH, MICRO_BATCH = "batch", "micro-batch"


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """The user's options for cutting a step."""

    micro_batches: int = 1
    stages: int | None = None
    """None: as annotated, or one."""
    schedule: str = GROUPED
    reduction: str = MEAN
    accumulator_type: str = ""
    """Element type; empty: that of each variable."""
    accumulator_types: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Number, name, or name of a whole group of parameters -> element type of their own."""
    recompute: str = "none"
    """What backward stages make again of their forward stage: none, cheap, blocks or full."""
    device_map: tuple[tuple[int, ...], ...] = ()
    """The IPUs of each stage, of which it has several where branches run at once; empty: one after
    the other."""
    cut_at: tuple[int, ...] = ()
    """Forward ops before each stage but the first; empty: to be found."""
    numbers: tuple[int, ...] = ()
    """Of the IPUs in the device map that was given, where it left some out; `device_map` counts
    those that are left."""
    carried: frozenset[int] = frozenset()
    """Parameters that go from micro-batch to micro-batch, as is said or seen."""
    assumed_carried: frozenset[int] = frozenset()
    """Those of `carried` that nobody said it of."""
    accumulators: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    """`accumulator_types` by the numbers of the parameters."""
    loss: int | None = None
    """Number of the result that is the loss."""
    gather_weights: str = BATCH
    """Whether divided weights are whole throughout a batch, or gathered by each micro-batch."""
    shard_optimizer: bool = False
    """Whether each replica keeps a part of the state that elementwise updates read."""
    offload: str = AUTO
    """State that only the update reads in remote buffers: on, off, or where micro-batches run."""
    offload_activations: bool = False
    """Whether what waits for a later position does so in remote buffers."""
    offload_weights: bool = False
    """Whether weights lie there, and come for each micro-batch, or each group of them."""
    lacks_memory: bool = False
    """Whether the step did not fit: with `recompute="full"` its last stage spares what it can."""
    offload_accumulators: bool = False
    """Whether gradients are added up there."""
    batch_serialization: int = 1
    """Micro-batches that a stage does before the next one does; 1: as the schedule says."""

    @property
    def asks(self) -> bool:
        """Whether anything is to be cut."""
        return (
            self.micro_batches > 1
            or self.stages is not None
            or bool(self.device_map)
            or self.offload == ON
            or self.asks_remote
        )

    @property
    def least_ipus(self) -> int:
        """IPUs that a replica takes at least, as far as what is asked for tells."""
        if self.device_map:
            return max(max(places, default=0) for places in self.device_map) + 1
        return self.stages or 1

    def without_gaps(self) -> "PipelineRequest":
        """Return the request with the IPUs of the device map counted without gaps."""
        numbers = sorted({ipu for ipus in self.device_map for ipu in ipus})
        if numbers == list(range(len(numbers))):
            return self
        device_map = tuple(tuple(map(numbers.index, ipus)) for ipus in self.device_map)
        return replace(self, device_map=device_map, numbers=tuple(numbers))

    @property
    def asks_remote(self) -> bool:
        """Whether more than the optimizer's state is to lie in remote buffers."""
        return self.offload_activations or self.offload_weights or self.offload_accumulators


class Part(NamedTuple):
    """One call of the formed entry that runs for each micro-batch."""

    call: str
    """Name of the instruction."""
    ipu: int
    level: int = 0
    """Parts of one level run at the same time, on IPUs of their own."""


class Position(NamedTuple):
    """Forward or backward part of a stage, run once per micro-batch."""

    name: str
    """`F0`, `B3`, or `step`."""
    stage: int
    ipus: tuple[int, ...]
    """Several where branches run at once, the one that joins them first."""
    parts: tuple[Part, ...]
    """In the order of their levels; none: there is nothing to do."""

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the calls."""
        return tuple(part.call for part in self.parts)


class Accumulation(NamedTuple):
    """A gradient that micro-batches add up: an element of a call's result."""

    call: str
    element: int
    element_type: str
    """In which it is added up."""
    parameters: tuple[int, ...]
    """Weights that it is the gradient of."""
    ipu: int = 0
    """That it is made on, and added up."""
    total: int = -1
    """The same number for terms of one sum, all that the update reads of them; -1: of none."""


@dataclass(frozen=True, slots=True)
class Pipelining:
    """The decided pipeline; the module beside it has an entry of calls."""

    schedule: Schedule
    positions: tuple[Position, ...]
    ipus: tuple[tuple[int, ...], ...]
    """Of each stage."""
    accumulations: tuple[Accumulation, ...]
    per_micro_batch: tuple[tuple[int, int], ...]
    """Parameters and results of state that goes from micro-batch to micro-batch."""
    reduction: str = MEAN
    pre: str = ""
    """Name of the call that makes what does not vary; empty: there is none."""
    update: str = ""
    homes: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """The IPU of each array of the parameters."""
    whole: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Parameters of state that replicas keep in parts -> the shape of the whole array."""
    combined: frozenset[tuple[str, int]] = frozenset()
    """Gradients, by call and element, that the update itself combines over the replicas."""
    loops: tuple[str, ...] = ()
    """What was made of loops over layers, for people."""
    evidence: str = ""
    """What the step was taken for, and why, for people."""
    compared: str = ""
    """Name of an op that compares samples of a batch, which micro-batches change."""
    numbers: tuple[int, ...] = ()
    """Of the IPUs, as the device map has them; empty: it leaves none out."""

    @property
    def ipu_count(self) -> int:
        """IPUs of one replica."""
        return max(map(max, self.ipus)) + 1

    @property
    def span(self) -> int:
        """IPUs that a replica takes: with those that a device map leaves out, a power of two."""
        return 1 << max(self.numbers).bit_length() if self.numbers else self.ipu_count

    @property
    def parts(self) -> tuple[Part, ...]:
        """All calls that run for each micro-batch."""
        return tuple(part for position in self.positions for part in position.parts)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update."""
        return self.schedule.micro_batches

    def lines(self) -> list[str]:
        """Return what was decided, for people."""
        trains = self.schedule.trains
        per_update = "an update" if trains else "a step"
        plural = "" if self.micro_batches == 1 else "es"
        combined = f"gradients combined by {self.reduction}" if trains else "no gradients"
        lines = [self.evidence] if self.evidence else []
        lines.append(f"{self.micro_batches} micro-batch{plural} {per_update}, {combined}")
        if self.schedule.stages > 1:
            numbers = self.numbers or range(self.ipu_count)
            on = device_map_text([numbers[ipu] for ipu in ipus] for ipus in self.ipus)
            idle = self.span - self.ipu_count
            lines.append(
                f"{self.schedule.stages} stages on IPUs {on}, "
                f"{self.schedule.kind}: {self.schedule.timetable.slots} slots {per_update}"
            )
            if idle:
                used = device_map_text((number,) for number in numbers)
                lines.append(
                    f"  of {self.span} IPUs {idle} {'do' if idle > 1 else 'does'} nothing; below, "
                    f"IPUs {used} are counted from 0"
                )
        elif self.ipu_count > 1:
            lines.append(f"  each on {self.ipu_count} IPUs")
        if trains:
            lines.append(f"  {len(self.accumulations)} gradients are added up")
        if self.compared:
            lines.append(
                f"  {self.compared} compares the samples of a micro-batch with each other: "
                f"{self.micro_batches} micro-batches are not one batch of as many samples"
            )
        if self.per_micro_batch:
            count = len(self.per_micro_batch)
            lines.append(f"  {count} arrays of state go from micro-batch to micro-batch")
        lines += self.loops
        if self.whole:
            lines.append(f"  {len(self.whole)} arrays of state lie in parts on the replicas")
        return lines

    def replica_lines(self, replicas: int, *, averages: bool) -> list[str]:
        """Return what replicas combine and what is each one's own, for people.

        `averages`: they combine gradients that the module's own collectives do not combine.
        """
        if replicas == 1:
            return []
        own = ["state of micro-batches"] if self.per_micro_batch else []
        own += ["data", "results"]
        if averages and self.schedule.trains:
            combined = "gradients combined by mean, weights stay alike"
        elif averages:
            combined = "nothing is combined"
        else:
            combined = "the module's own collectives combine what they name, and nothing else is"
        return [
            f"{replicas_text(replicas, self.span)}: {combined}; {', '.join(own)}: each "
            "replica's own"
        ]


def replicas_text(replicas: int, ipus: int) -> str:
    """Return how many replicas there are, and of how many IPUs, for people."""
    return f"{replicas} replicas" if ipus == 1 else f"{replicas} replicas of {ipus} IPUs"


def device_map_text(ipus: Iterable[Sequence[int]]) -> str:
    """Return the IPUs of each stage as `--device-map` takes them."""
    return ",".join(
        str(stage_ipus[0]) if len(stage_ipus) == 1 else f"[{','.join(map(str, stage_ipus))}]"
        for stage_ipus in ipus
    )
