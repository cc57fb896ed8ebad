"""Remote buffers that are larger than the memory beside an IPU: said by the verdict, refused."""

from math import prod

import jax
import pytest

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.memory.does_not_fit import DoesNotFit, require_fit
from hloipu_runtime.report.verdict import verdict
from tests.support.pipeline_trials import Cut, compiled
from tests.support.training_steps import STEPS

CUT = Cut("mlp_momentum", 1, "grouped", 1, offload="on")


def with_room(size_bytes: int) -> CompiledProgram:
    return compiled(
        CUT,
        set={"remote.remote_bytes": size_bytes, "bytes_per_tile": 2**20, "executable_bytes": 2**20},
    )


def offloaded_bytes() -> int:
    """Return the bytes of the momenta that are no smaller than 128 bytes."""
    _, optimizer, _ = STEPS[CUT.step].state()
    sizes = [4 * prod(leaf.shape) for leaf in jax.tree.leaves(optimizer)]
    return sum(size for size in sizes if size >= 128)


def test_what_just_fits_beside_an_ipu_fits() -> None:
    program = with_room(offloaded_bytes())
    (use,) = program.memory.ipus
    assert use.remote_bytes == program.memory.remote_available_bytes == offloaded_bytes()
    assert program.memory_plan.has_room_beside
    assert "remote buffers" not in verdict(program.profile())


def test_a_byte_less_does_not() -> None:
    need, room = offloaded_bytes(), offloaded_bytes() - 1
    program = with_room(room)
    assert not program.fits
    assert f"remote buffers need {need:,} of {room:,}" in verdict(program.profile())
    with pytest.raises(DoesNotFit, match=f"need {need:,} bytes of {room:,}") as told:
        require_fit(program.memory)
    assert told.value.code == "E1003"
