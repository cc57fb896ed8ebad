"""Options and requests that a module in Graphcore's encoding states.

A flat step says it in its header, `frontend_attributes={ipu_schedule="interleaved",…}`, so that it
is a whole program by itself, and whatever the command line says comes before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from hloipu_compiler.plan.pipelining import PipelineRequest, device_map_text
from hloipu_compiler.plan.wrapping import WrappingRequest

PREFIX = "ipu_"
_REMOTE = ("offload_activations", "offload_weights", "offload_accumulators")
SEPARATOR = ";"
"""Between the parts of an option that is given several times."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Options that the module states; unstated ones are empty or None."""

    micro_batches: int = 1
    stages: int | None = None
    schedule: str = ""
    reduction: str = ""
    recompute: str = ""
    offload: str = ""
    shard_optimizer: bool = False
    device_map: tuple[tuple[int, ...], ...] = ()
    offload_activations: bool = False
    offload_weights: bool = False
    offload_accumulators: bool = False
    batch_serialization: int = 1
    loop: int | None = None
    roles: tuple[tuple[int, str], ...] = ()
    feeds: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outfeeds: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names with their mode, as `NAME:MODE`."""
    why: str = ""
    """Why a loop stays a loop, where one does."""
    is_encoded: bool = True
    """Whether it is stated in Graphcore's encoding; else by a loop that reads queues."""

    def attributes(self) -> dict[str, str]:
        """Return it as attributes of a module."""
        text_by_key = {
            "micro_batches": str(self.micro_batches) if self.micro_batches > 1 else "",
            "stages": str(self.stages or ""),
            "schedule": self.schedule,
            "reduction": self.reduction,
            "recompute": self.recompute,
            "offload": self.offload,
            "shard_optimizer": "true" if self.shard_optimizer else "",
            "device_map": device_map_text(self.device_map),
            **{key: "true" for key in _REMOTE if getattr(self, key)},
            "batch_serialization": self._parts,
            "loop": str(self.loop or ""),
            "role": SEPARATOR.join(f"{number}={role}" for number, role in self.roles),
            "feed": SEPARATOR.join(_pair(feed) for feed in self.feeds),
            "outfeed": SEPARATOR.join(_pair(feed) for feed in self.outfeeds),
        }
        return {PREFIX + key: text for key, text in text_by_key.items() if text}

    @property
    def _parts(self) -> str:
        return str(self.batch_serialization) if self.batch_serialization > 1 else ""

    def pipelining(self, asked: PipelineRequest) -> PipelineRequest:
        """Return a request with its defaults replaced by what is stated."""
        stated = {
            "micro_batches": self.micro_batches if self.micro_batches > 1 else None,
            "stages": self.stages,
            "schedule": self.schedule or None,
            "reduction": self.reduction or None,
            "recompute": self.recompute or None,
            "offload": self.offload or None,
            "shard_optimizer": self.shard_optimizer or None,
            "device_map": self.device_map or None,
            **{key: True for key in _REMOTE if getattr(self, key)},
            "batch_serialization": self.batch_serialization if self._parts else None,
        }
        default = PipelineRequest()
        changes = {
            field.name: stated[field.name]
            for field in fields(PipelineRequest)
            if stated.get(field.name) is not None
            and getattr(asked, field.name) == getattr(default, field.name)
        }
        return replace(asked, **changes)  # type: ignore[arg-type]

    def wrapping(self, asked: WrappingRequest) -> WrappingRequest:
        """Return a request with what is stated, where the request itself says nothing."""
        return replace(
            asked,
            loop=self.loop if asked.loop is None else asked.loop,
            roles={str(number): role for number, role in self.roles} | dict(asked.roles),
            feeds=dict(asked.feeds) or dict(self.feeds),
            outfeeds=asked.outfeeds or tuple(_pair(feed) for feed in self.outfeeds),
        )

    def lines(self) -> list[str]:
        """Return what was read, for people."""
        if not self.is_encoded:
            return [f"the loop that reads queues {self._of_a_loop}"]
        if self.why:
            return [f"read from Graphcore's encoding: loops are written out, for {self.why}"]
        if self == Stated():
            return ["read as plain ops: custom calls and loops are written out"]
        words = [f"{self.micro_batches} micro-batches an update"]
        if self.stages:
            words.append(f"{self.stages} stages")
        words += [word for word in (self.schedule, self.reduction) if word]
        if self.device_map:
            words.append(f"on IPUs {device_map_text(self.device_map)}")
        if self.loop:
            words.append(f"{self.loop} updates a run")
        words += [f"{key} {text}" for key, text in self._update_words().items() if text]
        return [f"read from Graphcore's encoding: {'; '.join(words)}"]

    @property
    def _of_a_loop(self) -> str:
        if self.why:
            return f"stays a loop around whole steps, for {self.why}"
        is_accumulating = self.micro_batches > 1
        size_text = f" of {self.micro_batches} micro-batches each" if is_accumulating else ""
        return f"is taken apart: {self.loop} updates a run{size_text}"

    def _update_words(self) -> Mapping[str, str]:
        return {
            "recompute": self.recompute,
            "offload": self.offload,
            "shard optimizer": "on" if self.shard_optimizer else "",
            **{key.replace("_", " "): "on" if getattr(self, key) else "" for key in _REMOTE},
            "batch serialization": self._parts,
        }


def _pair(named: tuple[str, tuple[int, ...]]) -> str:
    return f"{named[0]}={','.join(map(str, named[1]))}"
