"""A candidate partitioning of a step, and its estimate."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from hloipu_compiler.partition.spmd.parameter_rules import Sharding
from hloipu_compiler.plan.schedule import GROUPED

AUTO, OFF, ON = "auto", "off", "on"
OFFLOADABLE = ("offload_weights", "offload_activations", "offload_accumulators")
"""What may lie in remote memory on request, by the options that do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One partitioning of a step."""

    stages: int = 1
    schedule: str = GROUPED
    micro_batches: int = 1
    recompute: str = "none"
    replicas: int = 1
    offload: str = AUTO
    """`auto`: state that only the update reads lies in remote buffers where that is of use."""
    shard_optimizer: bool = False
    device_map: tuple[int, ...] = ()
    """The IPU of each stage; empty: one after the other."""
    cut_at: tuple[int, ...] = ()
    """Where stages but the first begin, by place among the forward ops; empty: as cuts go."""
    offload_weights: bool = False
    offload_activations: bool = False
    offload_accumulators: bool = False
    batch_serialization: int = 1
    """Micro-batches that a stage does before the next one does."""
    sharding: Sharding | None = None
    """That was found for it; None: arrays are as the module says."""

    @property
    def ipus(self) -> int:
        """IPUs of one replica, of each partition."""
        return max(self.device_map) + 1 if self.device_map else self.stages

    @property
    def ipu_of_stage(self) -> tuple[int, ...]:
        """The IPU of each stage."""
        return self.device_map or tuple(range(self.stages))

    @property
    def extras(self) -> int:
        """What it asks for beside stages, schedule, micro-batches and replicas."""
        said = (
            self.recompute != "none", self.offload != AUTO, self.shard_optimizer,
            bool(self.device_map), bool(self.cut_at),
            *(getattr(self, name) for name in OFFLOADABLE),
            self.batch_serialization > 1, self.sharding is not None,
        )  # fmt: skip
        return sum(said)

    def offloading(self, kinds: Collection[str]) -> "Candidate":
        """Return the candidate with these kinds, of `OFFLOADABLE`, in remote memory, no others."""
        weights, activations, accumulators = (kind in kinds for kind in OFFLOADABLE)
        return replace(
            self,
            offload_weights=weights,
            offload_activations=activations,
            offload_accumulators=accumulators,
        )

    @property
    def offloaded_kinds(self) -> tuple[bool, ...]:
        """Whether each kind of `OFFLOADABLE` lies in remote memory."""
        return self.offload_weights, self.offload_activations, self.offload_accumulators

    @property
    def is_offloading(self) -> bool:
        """Whether more than the optimizer's state lies in remote memory."""
        return any(self.offloaded_kinds)

    @property
    def only_divides(self) -> bool:
        """Whether arrays are divided and the step is not cut: one stage has costs of its own."""
        return self.sharding is not None and self == Candidate(sharding=self.sharding)

    def options(self) -> dict[str, Any]:
        """Return the values of the options that ask for it."""
        return {
            "stages": None if self.only_divides else self.stages,
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "recompute": self.recompute,
            "replicas": None if self.only_divides else self.replicas,
            "offload": self.offload,
            "shard_optimizer": self.shard_optimizer,
            "device_map": self.device_map or None,
            "cut_at": self.cut_at or None,
            **{name: getattr(self, name) for name in OFFLOADABLE},
            "batch_serialization": self.batch_serialization,
            **({"mesh": said.mesh, "shard": said.rules} if (said := self.sharding) else {}),
        }

    def flags(self) -> str:
        """Return the command line's words for it."""
        words = [self.sharding.flags()] if self.sharding else []
        if self.only_divides:
            return words[0]
        words.append(f"--stages {self.stages}")
        if self.stages > 1:
            words.append(f"--schedule {self.schedule}")
        if self.device_map:
            words.append(f"--device-map {','.join(map(str, self.device_map))}")
        if self.cut_at:
            words.append(f"--cut-at {','.join(map(str, self.cut_at))}")
        words.append(f"--micro-batches {self.micro_batches}")
        if self.recompute != "none":
            words.append(f"--recompute {self.recompute}")
        if self.offload != AUTO:
            words.append(f"--offload {self.offload}")
        words += [f"--{name.replace('_', '-')}" for name in OFFLOADABLE if getattr(self, name)]
        if self.batch_serialization > 1:
            words.append(f"--batch-serialization {self.batch_serialization}")
        if self.replicas > 1:
            words.append(f"--replicas {self.replicas}")
        if self.shard_optimizer:
            words.append("--shard-optimizer")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a candidate would cost, by the cost model."""

    candidate: Candidate
    update_cycles: int
    """Of one update, or of one round of micro-batches through an inference pipeline."""
    per_second: float
    """Micro-batches, of all replicas."""
    kept_bytes: int
    """Of the fullest IPU, from slot to slot: state, accumulators, what waits between stages."""
    needed_bytes: int
    """Of the fullest IPU: what is kept, what is made meanwhile, and code."""
    budget_bytes: int
    """Of an IPU."""
    fits: bool
    bubble: float

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        candidate = self.candidate
        return {
            "stages": candidate.stages,
            "schedule": candidate.schedule,
            "micro_batches": candidate.micro_batches,
            "recompute": candidate.recompute,
            "offload": candidate.offload,
            "replicas": candidate.replicas,
            "shard_optimizer": candidate.shard_optimizer,
            "device_map": list(candidate.device_map),
            "cut_at": list(candidate.cut_at),
            **{name: getattr(candidate, name) for name in OFFLOADABLE},
            "batch_serialization": candidate.batch_serialization,
            **(candidate.sharding.record() if candidate.sharding else {"mesh": {}, "shard": {}}),
            "update_cycles": self.update_cycles,
            "micro_batches_per_second": self.per_second,
            "kept_bytes_per_ipu": self.kept_bytes,
            "needed_bytes_per_ipu": self.needed_bytes,
            "available_bytes_per_ipu": self.budget_bytes,
            "fits": self.fits,
            "bubble": self.bubble,
            "flags": candidate.flags(),
        }
