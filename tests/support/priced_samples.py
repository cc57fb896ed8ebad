"""Samples priced for a choice, with fewer tiles than an IPU has."""

from functools import lru_cache
from pathlib import Path

import hloipu
from hloipu.api import compile_once
from hloipu.choice_trials import Choice
from hloipu.choosing import priced
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.candidate import Estimate
from hloipu_compiler.partition.search.estimates import Step
from hloipu_runtime.compiled import CompiledProgram

LOOP = 50


@lru_cache
def module(name: str) -> Module:
    """Return a sample, verified."""
    return hloipu.verify(Path(f"hlo_samples/{name}.hlo").read_text(encoding="utf-8"))


def options(tiles: int) -> Options:
    """Return what is asked for: a way over up to four IPUs of so many tiles."""
    given = {"target": "gc200", "set": {"tiles_per_ipu": str(tiles)}, "ipus": 4, "plan": "auto"}
    return resolve("compile", {**given, "loop": LOOP, "cache": False}).options


@lru_cache
def step(name: str, tiles: int) -> Step:
    """Return the sample, priced."""
    return priced(module(name), options(tiles))


def compiled(name: str, tiles: int, found: Estimate) -> CompiledProgram:
    """Return the sample compiled as an estimate was made."""
    choice = Choice(module(name), [found], found, 1)
    return compile_once(choice.module, choice.options(options(tiles)))
