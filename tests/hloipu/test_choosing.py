"""A way that does not fit after all makes room for one that keeps less."""

from dataclasses import dataclass
from typing import Any

import hloipu
from hloipu.choosing import chosen
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from tests.compiler.staging.test_inference import LAYERS, text

TEXT = text(named=False)


@dataclass(frozen=True)
class Memory:
    fits: bool
    available_bytes: int = 100

    @property
    def peak(self) -> "Peak":
        return Peak(50 if self.fits else 120)


@dataclass(frozen=True)
class Peak:
    total_bytes: int


@dataclass(frozen=True)
class Program:
    memory: Memory


def asked() -> Options:
    given = {"ipus": 4, "plan": "auto", "micro_batches": 8, "feed": {"data": (LAYERS,)}, "loop": 1}
    return resolve("compile", given).options


def test_ways_are_tried_until_one_fits() -> None:
    module, seen = hloipu.verify(TEXT), []

    def tried(options: Options) -> Any:
        seen.append((options.stages, options.schedule, options.recompute))
        return Program(Memory(fits=len(seen) == 2))

    choice = chosen(module, asked(), tried)
    assert choice.is_tried
    assert len(seen) == len(set(seen)) == 2
    best = choice.best.way
    assert (best.stages, best.schedule) == seen[-1][:2]


def test_trials_end() -> None:
    module, count = hloipu.verify(TEXT), []

    def tried(options: Options) -> Any:
        count.append(options)
        return Program(Memory(fits=False))

    choice = chosen(module, asked(), tried)
    assert not choice.is_tried
    assert len(count) <= 4


def test_without_trials_the_fastest_by_estimate_is_taken() -> None:
    choice = chosen(hloipu.verify(TEXT), asked())
    assert choice.best == choice.rows[0]
    assert all(row.way.micro_batches == 8 for row in choice.rows)
    assert all(row.way.stages * row.way.replicas <= 4 for row in choice.rows)
    options = choice.options(asked())
    assert (options.plan, options.replicas) == ("none", choice.best.way.replicas)
