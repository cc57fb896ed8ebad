"""Which ways are looked at, how they are said, and how far their outlooks are from the truth."""

import json

import pytest

from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.candidates import Given, candidates_on, device_map, swept
from hloipu_compiler.partition.search.estimates import Step
from hloipu_compiler.partition.training.errors import StagingError
from tests.support import priced_samples
from tests.support.command_line import run
from tests.support.priced_samples import LOOP, compiled

SAMPLE, TILES = "convnet_train_step", 32


def step() -> Step:
    return priced_samples.step(SAMPLE, TILES)


def test_ways_fill_the_system_and_no_more() -> None:
    candidates = candidates_on(step(), 4)
    assert len(candidates) == len(set(candidates))
    assert all(candidate.ipus * candidate.replicas <= 4 for candidate in candidates)
    assert {x.recompute for x in candidates if x.stages > 1} == {"none", "cheap", "blocks", "full"}
    assert {x.recompute for x in candidates if x.stages == 1} == {"none", "blocks"}
    assert {candidate.offload for candidate in candidates} == {"auto", "off"}
    assert {candidate.shard_optimizer for candidate in candidates if candidate.replicas == 1} == {
        False
    }
    assert {candidate.device_map for candidate in candidates if candidate.stages == 4} == {
        (), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 0, 0)
    }  # fmt: skip
    turning = [x for x in candidates if x.stages > x.ipus == 1]
    assert {x.schedule for x in turning} == {"sequential"}
    assert {x.replicas for x in turning} == {4}


def test_what_is_given_stays() -> None:
    given = Given(
        stages=2, schedule="interleaved", micro_batches=3, recompute="cheap", offload="on",
        replicas=2, shard_optimizer=True,
    )  # fmt: skip
    (candidate,) = candidates_on(step(), 4, given)
    assert candidate == Candidate(2, "interleaved", 3, "cheap", 2, "on", True)
    assert {x.device_map for x in candidates_on(step(), 4, Given(device_map=(0, 0, 1)))} == {
        (0, 0, 1)
    }


@pytest.mark.parametrize(
    ("kind", "stages", "expected"),
    [
        ("straight", 4, ()), ("folded", 4, (0, 1, 1, 0)), ("looped", 4, (0, 1, 0, 1)),
        ("folded", 6, (0, 1, 2, 2, 1, 0)), ("folded", 3, ()),
    ],
)  # fmt: skip
def test_maps_put_two_stages_on_each_ipu(kind: str, stages: int, expected: tuple[int, ...]) -> None:
    assert device_map(kind, stages) == expected


def test_every_key_is_swept_over() -> None:
    asked = {
        "stages": ["2", "4"], "offload": ["on", "off"], "shard-optimizer": ["on", "off"],
        "recompute": ["cheap"], "device-map": ["folded"], "replicas": ["2"],
    }  # fmt: skip
    candidates = swept(step(), asked, Candidate(micro_batches=5))
    assert len(candidates) == 8
    assert {(candidate.stages, candidate.device_map) for candidate in candidates} == {
        (2, (0, 0)),
        (4, (0, 1, 1, 0)),
    }
    assert {candidate.micro_batches for candidate in candidates} == {5}
    for key, text in (("offload", "auto,"), ("shard-optimizer", "yes"), ("device-map", "0,1")):
        with pytest.raises(StagingError, match="E0520"):
            swept(step(), {key: [text]}, Candidate())


WAYS = (
    Candidate(1, "grouped", 4),
    Candidate(1, "grouped", 4, "none", 4, "off", True),
    Candidate(2, "grouped", 8, "none", 2),
    Candidate(2, "interleaved", 8, "full", 2, "off"),
    Candidate(4, "sequential", 2, "cheap"),
    Candidate(4, "grouped", 8, "none", 2, "auto", False, (0, 1, 1, 0)),
    Candidate(4, "grouped", 8, "full", 1, "off"),
    Candidate(1, "grouped", 4, "blocks"),
    Candidate(2, "grouped", 8, "blocks", 2),
    Candidate(2, "sequential", 8, offload_weights=True, batch_serialization=4),
    Candidate(2, "grouped", 8, "none", 2, offload_activations=True, offload_accumulators=True),
)


@pytest.mark.parametrize("candidate", WAYS, ids=Candidate.flags)
@pytest.mark.thinned(3)
def test_outlooks_are_near_what_compiling_gives(candidate: Candidate) -> None:
    found = step().estimate(candidate)
    program = compiled(SAMPLE, TILES, found)
    cycles = program.estimate().lower_bound_cycles / LOOP
    assert 0.8 < found.update_cycles / cycles < 1.25
    most = max(int(ipu.needed_bytes.max()) for ipu in program.memory_plan.ipus)
    assert 0.75 < found.needed_bytes / 32 / most < 1.4
    assert found.kept_bytes <= found.needed_bytes


@pytest.mark.parametrize("candidate", WAYS, ids=Candidate.flags)
def test_flags_ask_for_the_way_that_they_are_of(candidate: Candidate) -> None:
    outcome = run(
        "compile",
        f"hlo_samples/{SAMPLE}.hlo",
        "--print-config",
        *candidate.flags().split(),
        "--json",
    )
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)["options"]
    expected = candidate.options() | {
        "replicas": candidate.replicas if candidate.replicas > 1 else None
    }
    for name, value in expected.items():
        if name == "recompute" and value == "none":
            value = "auto"
        if candidate.stages == 1 and name == "schedule":
            continue
        found = record[name]["value"]
        assert (tuple(found) if isinstance(found, list) else found) == value, name
