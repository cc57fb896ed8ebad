"""A training step whose results have closed forms, and a way to cut it with outfeeds to take them.

Two weights of four numbers fit `x * w * v` to `x`. Beside them the step hands on what is fed, and
what is made of it, in whatever element type.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import user_dtype

TEXT = """HloModule fitted, input_output_alias={{
  {{0}}: (0, {{}}, must-alias), {{1}}: (1, {{}}, must-alias) }}
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
ENTRY e {{
  w = f32[4] parameter(0)
  v = f32[4] parameter(1)
  x = f32[4] parameter(2)
  rows = {0}[2,3] parameter(3)
  one = {0}[] parameter(4)
  hidden = f32[4] multiply(x, w)
  guess = f32[4] multiply(hidden, v)
  off = f32[4] subtract(guess, x)
  square = f32[4] multiply(off, off)
  zero = f32[] constant(0)
  loss = f32[] reduce(square, zero), dimensions={{0}}, to_apply=add
  v_slope = f32[4] multiply(off, hidden)
  hidden_slope = f32[4] multiply(off, v)
  w_slope = f32[4] multiply(hidden_slope, x)
  rate = f32[] constant(0.0625)
  rates = f32[4] broadcast(rate), dimensions={{}}
  w_change = f32[4] multiply(w_slope, rates)
  v_change = f32[4] multiply(v_slope, rates)
  next_w = f32[4] subtract(w, w_change)
  next_v = f32[4] subtract(v, v_change)
  size = f32[] reduce(next_w, zero), dimensions={{0}}, to_apply=add
  changed = {0}[2,3] {1}
  ROOT all = (f32[4], f32[4], f32[], f32[4], {0}[2,3], {0}[2,3], {0}[], f32[], f32[4])
    tuple(next_w, next_v, loss, hidden, rows, changed, one, size, next_w)
}}
"""
RATE = 0.0625
FED = ("x", "rows", "one")
EACH_MICRO_BATCH = {2: "loss", 3: "hidden", 4: "rows", 5: "changed", 6: "one"}
"""Results by number that every micro-batch gives."""
EACH_UPDATE = {7: "size", 8: "weights"}
TYPED = frozenset({4, 5, 6})
"""Those of the drawn element type."""
REDUCED = ("sum", "mean")
LOOPS = (3, 4, 7, 9, 10, 11, 12, 15, 16, 17, 25, 32, 50, 64, 99, 100)
"""Turns; from 10 on their decimal and hexadecimal readings differ."""
TYPES = (
    "f32", "f16", "bf16", "s32", "pred", "u8", "s8", "s16", "u32", "s64", "f64", "f8e4m3fn",
    "f8e5m2", "s4", "c64",
)  # fmt: skip
CALLS = (1, 2)
"""Runs of the program in each call of `Session.run`."""


@dataclass(frozen=True)
class Outfeed:
    """A queue that takes results."""

    name: str
    mode: str
    places: tuple[int, ...]
    of_session: bool = False
    """Whether the session asks for the mode, and the program for none."""

    def text(self) -> str:
        """Return what `hloipu.compile` is told."""
        mode = f":{self.mode.replace('-', '=')}" if not self.of_session else ""
        return f"{self.name}{mode}={','.join(map(str, self.places))}"


@dataclass(frozen=True)
class Case:
    """One program, and how it is run."""

    loop: int
    replicas: int
    micro_batches: int
    stages: int
    io_tiles: int
    element_type: str
    mode: str
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.element_type} loop {self.loop}, {self.replicas} replicas, "
            f"{self.micro_batches} micro-batches, {self.stages} stages, {self.io_tiles} I/O tiles, "
            f"{self.mode}, seed {self.seed}"
        )

    @property
    def text(self) -> str:
        """The step."""
        kind = self.element_type
        return TEXT.format(kind, "not(rows)" if kind == "pred" else "add(rows, rows)")

    @property
    def options(self) -> dict[str, Any]:
        """What `hloipu.compile` is told beside the outfeeds."""
        options: dict[str, Any] = {
            "loop": self.loop, "feed": {"data": (2, 3, 4)}, "replicas": self.replicas,
            "micro_batches": self.micro_batches, "io_tiles": self.io_tiles,
        }  # fmt: skip
        return options | ({"stages": self.stages} if self.stages > 1 else {})

    @cached_property
    def outfeeds(self) -> tuple[Outfeed, ...]:
        """Queues of every mode, each taking some of the results, several where it happens so."""
        draw = Random(self.seed)
        every = f"every-{draw.choice((1, 2, 3, 5, self.loop, self.loop + 1))}"
        outfeeds = []
        for mode in ("all", "last", "first", every, *REDUCED):
            for of_update in (False, True):
                known = tuple(EACH_UPDATE if of_update else EACH_MICRO_BATCH)
                if mode in REDUCED and draw.random() < 0.3:
                    known += tuple(EACH_MICRO_BATCH if of_update else EACH_UPDATE)
                if mode in REDUCED and self.element_type == "pred":
                    known = tuple(n for n in known if n not in TYPED)
                places = tuple(draw.sample(known, draw.randint(1, len(known))))
                name = f"{mode.partition('-')[0]}{'_of_updates' * of_update}"
                of_session = mode not in REDUCED and draw.random() < 0.3
                outfeeds.append(Outfeed(name, mode, places, of_session))
        return tuple(draw.sample(outfeeds, len(outfeeds)))

    @property
    def calls(self) -> tuple[int, ...]:
        """Runs of the program in each call of `Session.run`."""
        return CALLS if self.loop < 50 else (1,)

    @property
    def elements(self) -> int:
        """How many elements of the feed all calls take."""
        return sum(self.calls) * self.loop * self.micro_batches * self.replicas

    def fed(self) -> dict[str, Any]:
        """Return what is fed: whole numbers that every type holds, and their doubles."""
        draw = np.random.default_rng(self.seed)
        known = ELEMENT_TYPES[self.element_type]
        top = 2 if known.bits < 8 or self.element_type == "pred" else 5
        low = 0 if known.name.startswith("u") or self.element_type == "pred" else -1
        dtype = user_dtype(self.element_type)
        rows = draw.integers(low, top, (self.elements, 2, 3)).astype(dtype)
        one = draw.integers(low, top, self.elements).astype(dtype)
        x = draw.uniform(0.5, 1.5, (self.elements, 4)).astype(np.float32)
        return {"x": x, "rows": rows, "one": one}


def all_cases(types: Sequence[str] = TYPES, loops: Sequence[int] = LOOPS) -> Iterator[Case]:
    """Yield the product of all ways, whole tensors; one of 16, up to 16 turns, tile by tile too."""
    ways = product(loops, (1, 2, 4), (1, 2, 4), (1, 2), (0, 1), types)
    for seed, (loop, replicas, micro_batches, stages, io_tiles, kind) in enumerate(ways):
        case = Case(loop, replicas, micro_batches, stages, io_tiles, kind, "functional", seed)
        yield case
        if seed % 16 == loop % 16 and loop <= 16:
            yield Case(loop, replicas, micro_batches, stages, io_tiles, kind, "exact", seed)


def drawn_cases(count: int, seed: int = 0) -> list[Case]:
    """Return so many of all cases."""
    return Random(seed).sample(list(all_cases()), count)
