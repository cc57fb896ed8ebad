"""What lies in remote buffers, and groups of micro-batches: the same bits, less on the tiles."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_runtime.compiled import CompiledProgram, Mode, load
from hloipu_runtime.errors import UsageError
from hloipu_runtime.memory.remote_parts import RemoteCategory
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.uses import steps_within
from tests.support import concurrent_trials
from tests.support.concurrent_trials import Concurrent
from tests.support.memory_checker import check_memory
from tests.support.pipeline_reference import EVERY_STEP, UPDATES
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled

KINDS = ("activations", "weights", "accumulators")
EVERYTHING = {f"offload_{kind}": True for kind in KINDS} | {"offload": "on"}


def left_by(cut: Cut, program: CompiledProgram, mode: Mode, *, poison: bool = False) -> list[Any]:
    """Return every array of state, of all replicas, and the losses after two updates."""
    step = EVERY_STEP[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    fed = iter([step.batch(n) for n in range(UPDATES * cut.micro_batches * cut.replicas)])
    with program.session(state=state, infeeds={"data": fed}, mode=mode, poison=poison) as session:
        session.run(UPDATES)
        losses = [np.asarray(x.element) for x in session.stream("loss").drain()]
        kept = [x for r in range(cut.replicas) for x in session.state(r).values()]
    return [*kept, *losses]


@lru_cache(32)
def plain(cut: Cut) -> list[Any]:
    """Return what a step leaves that keeps everything on tiles, micro-batch after micro-batch."""
    return left_by(cut, compiled(cut), "functional")


def assert_same_bits(cut: Cut, options: Mapping[str, Any], mode: Mode = "functional") -> None:
    """Assert that a step leaves what it leaves without these options, bit by bit."""
    program = compiled(cut, **options)
    found = left_by(cut, program, mode, poison=mode == "exact")
    for a, b in zip(found, plain(cut), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("step", "schedule"),
    [
        ("mlp_sgd", "sequential"), ("cnn_momentum", "interleaved"), ("lstm_adam", "grouped"),
        ("transformer_adam", "grouped"), ("averaging_momentum", "interleaved"),
    ],
)  # fmt: skip
def test_remote_buffers_do_not_change_a_bit(step: str, schedule: str) -> None:
    assert_same_bits(Cut(step, 2, schedule, 3, offload="off"), EVERYTHING)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_may_lie_there_alone(kind: str) -> None:
    cut = Cut("residual_adam", 2, "interleaved", 4, offload="off")
    assert_same_bits(cut, {f"offload_{kind}": True})


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("step", "stages", "group"),
    [
        ("mlp_sgd", 3, 2), ("cnn_momentum", 2, 3), ("transformer_adam", 2, 2), ("lstm_adam", 2, 5),
        ("averaging_momentum", 3, 7), ("mlp_sgd", 1, 2),
    ],
)  # fmt: skip
def test_groups_of_micro_batches_do_not_change_a_bit(step: str, stages: int, group: int) -> None:
    cut = Cut(step, stages, "sequential", 5, offload="off")
    assert_same_bits(cut, {"batch_serialization": group})
    assert_same_bits(cut, {"batch_serialization": group} | EVERYTHING)


@pytest.mark.parametrize(
    ("cut", "group"),
    [
        (Cut("mlp_adamw_clipped", 2, "grouped", 3, offload="off"), 1),
        (Cut("transformer_adam", 2, "sequential", 3, offload="off"), 2),
        (Cut("cnn_momentum", 3, "interleaved", 4, offload="off", map="shared"), 1),
        (Cut("mlp_sgd", 2, "sequential", 4, "running_mean", "bf16", offload="off"), 4),
    ],
    ids=str,
)
@pytest.mark.thinned(4)
def test_tiles_by_themselves_come_to_the_same(cut: Cut, group: int) -> None:
    program = compiled(cut, **EVERYTHING, batch_serialization=group)
    assert_equal_to_jax(cut, program, mode="exact")
    first, second = (left_by(cut, program, "exact", poison=poison) for poison in (False, True))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize(
    "cut",
    [
        Cut("lstm_adam", 2, "grouped", 3, replicas=2, offload="on"),
        Cut("transformer_adam", 2, "grouped", 3, replicas=2, offload="on", shard_optimizer=True),
        Cut("mlp_sgd", 1, "sequential", 4, "sum", replicas=2, offload="on", shard_optimizer=True),
        Cut("residual_adam", 4, "interleaved", 4, recompute="full", map="shared"),
    ],
    ids=str,
)
@pytest.mark.thinned(4)
def test_replicas_each_have_their_own(cut: Cut) -> None:
    for group in (1, 2) if cut.schedule == "sequential" else (1,):
        program = compiled(cut, **(EVERYTHING | {"batch_serialization": group}))
        assert any(use.remote for use in program.memory.ipus)
        assert_equal_to_jax(cut, program)
    if cut.step != "transformer_adam":
        assert_equal_to_jax(cut, program, mode="exact")


@pytest.mark.parametrize(
    ("cut", "group"), [(Concurrent("heads"), 1), (Concurrent("normed", schedule="sequential"), 2)]
)
def test_branches_at_once_have_their_own(cut: Concurrent, group: int) -> None:
    options = EVERYTHING | {"batch_serialization": group}
    program = concurrent_trials.compiled(cut, **options)
    assert all(use.remote for use in program.memory.ipus)
    concurrent_trials.assert_equal_to_jax(cut, program)
    concurrent_trials.assert_equal_to_jax(cut, program, mode="exact")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("cut", "group"),
    [
        (Cut("mlp_sgd", 2, "grouped", 3), 1),
        (Cut("mlp_sgd", 2, "sequential", 4), 3),
        (Cut("residual_adam", 4, "interleaved", 3, map="shared"), 1),
    ],
    ids=str,
)
def test_no_two_values_have_one_place_in_a_tiles_memory(cut: Cut, group: int) -> None:
    program = compiled(cut, **(EVERYTHING | {"batch_serialization": group}))
    check_memory(program.program, program.machine)


def test_shards_of_the_optimizer_are_parts_in_remote_memory() -> None:
    cut = Cut("transformer_adam", 2, "grouped", 3, replicas=2, offload="on")
    whole, parts = (
        [use.remote[RemoteCategory.STATE] for use in compiled(cut, shard_optimizer=x).memory.ipus]
        for x in (False, True)
    )
    assert all(0.5 * a <= b < a for a, b in zip(whole, parts, strict=True))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_report_tells_what_lies_there(kind: str) -> None:
    program = compiled(
        Cut("transformer_adam", 2, "grouped", 4, offload="off"), **{f"offload_{kind}": True}
    )
    parts = [use.remote for use in program.memory.ipus]
    assert {category.value for part in parts for category in part} == {kind}
    there = [x for x in program.program.variables if x.role is Role.REMOTE]
    for ipu, use in enumerate(program.memory.ipus):
        sizes = [4 * int(np.prod(x.shape)) for x in there if x.ipu == ipu]
        assert use.remote_bytes == sum(sizes)
        assert all(size >= 128 for size in sizes)
        assert use.to_json()["remote"].get(kind, 0) == sum(sizes)


def test_tiles_need_less_for_what_waits_elsewhere() -> None:
    cut = Cut("transformer_adam", 2, "grouped", 8, offload="off")
    before, after = compiled(cut), compiled(cut, offload_activations=True)
    kept, there = before.profile().pipelines[0], after.profile().pipelines[0]
    stashed = sum(x.stash_bytes for x in kept.positions)
    moved = sum(x.remote_bytes for x in there.positions)
    assert sum(x.stash_bytes for x in there.positions) == stashed - moved
    assert moved > stashed / 2
    assert max(x.peak_bytes for x in after.memory.ipus) < max(
        x.peak_bytes for x in before.memory.ipus
    )


def test_new_state_takes_the_place_of_what_came_from_there() -> None:
    program = compiled(Cut("lstm_adam", 2, "grouped", 4, offload="on")).program
    roles = [x.role for x in program.variables]
    copies = [x for x in steps_within(program.body, program) if isinstance(x, RemoteCopy)]
    fetched = {x.destination for x in copies if roles[x.source] is Role.REMOTE}
    stored = {x.source for x in copies if roles[x.destination] is Role.REMOTE}
    assert stored == fetched != set()


@pytest.mark.parametrize("options", [{}, {"schedule": "sequential", "batch_serialization": 2}])
def test_cycles_of_both_engines_are_those_of_the_estimate(options: dict[str, Any]) -> None:
    cut = Cut("residual_adam", 2, options.get("schedule", "grouped"), 5)
    program = compiled(cut, **(EVERYTHING | options))
    cycles = program.profile().record()["total_cycles"]
    step = EVERY_STEP[cut.step]
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    for mode in ("functional", "exact"):
        fed = iter([step.batch(n) for n in range(10)])
        with program.session(state=state, infeeds={"data": fed}, mode=mode) as session:
            session.run(UPDATES)
            assert session.profile().record()["total_cycles"] == cycles


def test_an_executable_holds_it(tmp_path: Any) -> None:
    cut = Cut("mlp_adam", 2, "sequential", 5)
    program = compiled(cut, **(EVERYTHING | {"batch_serialization": 2}))
    path = tmp_path / "step.ipux"
    program.save(path)
    again = load(path)
    assert again.program.body == program.program.body
    assert_equal_to_jax(cut, again, mode="exact")


INFERENCE = """HloModule two_layers
ENTRY e {
  x = f32[4,16] parameter(0)
  a = f32[16,16] parameter(1)
  b = f32[16,16] parameter(2)
  hidden = f32[4,16] dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bent = f32[4,16] tanh(hidden)
  ROOT y = f32[4,16] dot(bent, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.mark.parametrize("options", [{}, {"schedule": "sequential", "batch_serialization": 3}])
def test_weights_of_inference_lie_there_too(options: dict[str, Any]) -> None:
    program = hloipu.compile(
        INFERENCE, target="tiny", cache=False, stages=2, micro_batches=4, offload_weights=True,
        feed={"data": (0,)}, outfeed=["y=0"], role={"1": "const", "2": "const"}, **options,
    )  # fmt: skip
    assert [use.remote_bytes for use in program.memory.ipus] == [1024, 1024]
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-2, 3, (16, 16)).astype(np.float32) for _ in range(2))
    fed = [(np.eye(4, 16, n, dtype=np.float32),) for n in range(4)]
    for mode in ("functional", "exact"):
        with program.session(constants=[a, b], infeeds={"data": iter(fed)}, mode=mode) as session:
            session.run(1)
            found = [np.asarray(x.element) for x in session.stream("y").drain()]
        wanted = [np.tanh(x @ a) @ b for (x,) in fed]
        np.testing.assert_allclose(np.reshape(found, (4, 4, 16)), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_without_remote_buffers_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=f"E0511.*gc2 has no remote buffers to keep {kind} in"):
        hloipu.compile(
            EVERY_STEP["mlp_sgd"].text,
            target="gc2",
            micro_batches=4,
            **cast(Any, {f"offload_{kind}": True}),
        )


@pytest.mark.parametrize("schedule", ["grouped", "interleaved"])
def test_groups_need_the_sequential_schedule(schedule: str) -> None:
    with pytest.raises(StagingError, match="E0555"):
        compiled(Cut("mlp_sgd", 2, schedule, 4), batch_serialization=2)
