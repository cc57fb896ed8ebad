"""What lies beside IPUs: transfers by the machine's own numbers, and when they are looked for."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hloipu
from hloipu.api import compile_once
from hloipu.choosing import chosen, priced
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.candidate import OFFLOADABLE, Candidate
from hloipu_compiler.partition.search.candidates import (
    Given,
    candidates_on,
    candidates_sharing_ipus,
    offloading_candidates,
    swept,
)
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.search.remote import RemoteCycles
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_runtime.machine.load import load_machine

SAMPLE = Path("hlo_samples/mnist_train_step.hlo")


@lru_cache
def module() -> Module:
    return hloipu.verify(SAMPLE.read_text(encoding="utf-8"))


def options(tiles: int, ipus: int = 1, bytes_per_tile: int = 638_976) -> Options:
    numbers = {"tiles_per_ipu": str(tiles), "bytes_per_tile": str(bytes_per_tile)}
    given = {"target": "gc200", "set": numbers, "ipus": ipus, "plan": "auto"}
    return resolve("compile", {**given, "loop": 10, "cache": False}).options


@lru_cache
def step(tiles: int = 3) -> Step:
    return priced(module(), options(tiles))


def test_large_copies_stand_alone_and_small_ones_together() -> None:
    machine = load_machine("gc200", {})
    clock, remote = machine.chip.clock_hz, machine.remote
    access = -(-remote.access_nanoseconds * clock // 10**9)

    def bytes_in(size: int, rate: int) -> int:
        return -(-size * clock // rate)

    found = RemoteCycles(machine)
    read, write = remote.read_bytes_per_second, remote.write_bytes_per_second
    large = 10 * read * remote.access_nanoseconds // 10**9
    assert found.several((large, 400, 600), write=False) == (
        2 * access + bytes_in(large, read) + bytes_in(1000, read)
    )
    assert found.several((400,), write=True, parts=4) == access + bytes_in(100, write)
    assert found.both_ways((400,)) == 2 * access + bytes_in(400, read) + bytes_in(400, write)
    assert found.several((), write=False) == 0


def test_what_does_not_fit_otherwise_is_found_with_weights_beside() -> None:
    small = options(4, bytes_per_tile=393_216)
    there = priced(module(), small)
    plain = [there.estimate(candidate) for candidate in candidates_on(there, 1)]
    assert not any(x.fits for x in plain)
    choice = chosen(module(), small, compile_once)
    assert choice.is_tried
    assert choice.best.candidate.offload_weights
    assert choice.program is not None
    assert choice.program.fits


def test_weights_that_exceed_all_tiles_come_stage_by_stage() -> None:
    weights = np.zeros((8, 128, 256), np.float32), np.zeros((8, 256, 128), np.float32)

    def predict(up: Any, down: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None), x, (up, down))[0]

    lowered = jax.jit(predict).lower(*weights, np.zeros((16, 128), np.float32))
    module = hloipu.verify(lowered.compiler_ir("hlo").as_hlo_text())
    given = {"target": "gc200", "set": {"tiles_per_ipu": "2"}, "ipus": 1, "plan": "auto"}
    more = {"loop": 2, "cache": False, "feed": {"data": (2,)}}
    asked = resolve("compile", {**given, **more}).options
    choice = chosen(module, asked, compile_once)
    assert choice.is_tried
    assert choice.best.candidate.offload_weights
    assert choice.best.candidate.stages > choice.best.candidate.ipus == 1
    assert choice.best.budget_bytes < sum(x.nbytes for x in weights)


def test_more_beside_is_looked_for_from_what_no_other_beats() -> None:
    given = Given(micro_batches=4, offloading=frozenset({"offload_weights"}))
    roomy = step(64)
    plain = [roomy.estimate(candidate) for candidate in candidates_on(roomy, 1, given)]
    assert all(x.candidate.offload_weights for x in plain)
    more = offloading_candidates(roomy, plain, given)
    assert {tuple(getattr(candidate, kind) for kind in OFFLOADABLE) for candidate in more} == {
        (True, True, False), (True, False, True), (True, True, True)
    }  # fmt: skip
    assert not offloading_candidates(
        roomy, plain, Given(offload="off", offloading=frozenset(OFFLOADABLE))
    )


def test_stages_in_turns_bring_their_own_weights() -> None:
    candidates = candidates_sharing_ipus(step(), 2)
    assert {candidate.stages for candidate in candidates} == {8, 16, 32}
    assert {candidate.ipus for candidate in candidates} == {2}
    assert all(candidate.offload_weights for candidate in candidates)
    assert {
        candidate.batch_serialization for candidate in candidates if candidate.schedule == "grouped"
    } == {1}
    assert not candidates_sharing_ipus(step(), 2, Given(stages=2))


def test_remote_memory_is_swept_over() -> None:
    asked = {"offload-weights": ["on", "off"], "batch-serialization": ["1", "4"]}
    candidates = swept(step(), asked, Candidate(2, "grouped", 8))
    assert [(x.offload_weights, x.batch_serialization, x.schedule) for x in candidates] == [
        (True, 1, "grouped"), (True, 4, "sequential"), (False, 1, "grouped"),
        (False, 4, "sequential"),
    ]  # fmt: skip
    with pytest.raises(StagingError, match="E0520"):
        swept(step(), {"schedule": ["grouped"], "batch-serialization": ["4"]}, Candidate(2))
    bare = priced(module(), resolve("compile", {"target": "gc2", "loop": 10}).options)
    with pytest.raises(StagingError, match="E0520"):
        swept(bare, {"offload-activations": ["on"]}, Candidate(2))
    assert not offloading_candidates(bare, [bare.estimate(Candidate())])
