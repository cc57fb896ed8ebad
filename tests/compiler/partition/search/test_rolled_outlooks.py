"""Layers in a loop cost what compiling says, whichever trips stay one loop."""

import pytest

from hloipu.choosing import priced
from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.estimates import Step
from tests.support import priced_samples
from tests.support.priced_samples import LOOP, compiled, module, options

SAMPLE, TILES = "scanned_blocks_train_step", 64


def step() -> Step:
    return priced_samples.step(SAMPLE, TILES)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(1, "grouped", 4),
        Candidate(2, "grouped", 4, offload="off"),
        Candidate(2, "interleaved", 4, "full"),
        Candidate(
            2,
            "sequential",
            8,
            offload_weights=True,
            offload_accumulators=True,
            batch_serialization=4,
        ),
        Candidate(2, "grouped", 4, "cheap", offload_activations=True, offload_accumulators=True),
    ],
    ids=Candidate.flags,
)
@pytest.mark.thinned(2)
def test_outlooks_are_near_what_compiling_gives(candidate: Candidate) -> None:
    found = step().estimate(candidate)
    program = compiled(SAMPLE, TILES, found)
    cycles = program.estimate().lower_bound_cycles / LOOP
    assert 0.85 < found.update_cycles / cycles < 1.2
    most = max(int(ipu.needed_bytes.max()) for ipu in program.memory_plan.ipus)
    assert 0.8 < found.needed_bytes / 64 / most < 1.4


def test_trips_of_one_loop_are_dearer_than_written_out() -> None:
    forms = step().forms
    whole = sum(forms.at({}, 1)[0].survey.cycles)
    written_out = sum(forms._written_out().survey.cycles)
    assert whole > 1.3 * written_out


def test_what_is_not_looked_at_is_taken_from_what_is() -> None:
    candidate = Candidate(2, "grouped", 4, offload="off")
    rough = priced(module(SAMPLE), options(TILES))
    rough.forms.left = 0
    assert rough.estimate(candidate).update_cycles == pytest.approx(
        step().estimate(candidate).update_cycles, rel=0.15
    )
