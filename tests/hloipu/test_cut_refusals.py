"""Cuts that cannot be: each refused by a typed error that names what is wrong and what helps."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import HloipuError, StreamEndedError
from tests.support.command_line import run
from tests.support.training_steps import STEPS

_NONE = "no such arrays of 128 bytes or more"
STEP = STEPS["mlp_sgd"]
FIRST = STEP.state_count


def refusal(text: str, **options: Any) -> HloipuError:
    given = {
        "target": "tiny", "over_memory": "allow", "cache": False, "loop": 2,
        "feed": {"data": (FIRST, FIRST + 1)}, **options,
    }  # fmt: skip
    with pytest.raises(HloipuError) as caught:
        hloipu.compile(text, **given)
    return caught.value


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"micro_batches": 0}, "E3011", "from 1 to"),
        ({"micro_batches": -1}, "E3011", "from 1 to"),
        ({"micro_batches": 2**70}, "E3011", "from 1 to"),
        ({"stages": 0}, "E3011", "from 1 to"),
        ({"stages": 200}, "E0506", "18 forward ops cannot make up 200 stages"),
        ({"cut_at": (9, 4)}, "E0506", "cannot be cut into 3 stages at 9,4"),
        ({"cut_at": (18,)}, "E0506", "18 forward ops cannot be cut into 2 stages at 18"),
        ({"cut_at": (4, 9), "stages": 2}, "E0506", "cannot be cut into 2 stages at 4,9"),
        ({"cut_at": (4,), "plan": "auto"}, "E0565", "--cut-at says where"),
        ({"cut_at": (4,), "shards": 2}, "E0553", "shards were asked for, and stages"),
        ({"stages": 1000}, "E3210", "1 to 256 IPUs, not 1000"),
        ({"shards": 1000}, "E3210", "1 to 256 IPUs, not 1000"),
        ({"stages": 2, "device_map": (0,)}, "E0507", "is for 1 stages; there are 2"),
        ({"stages": 2, "device_map": (0, 2), "ipus": 2}, "E0475", "the program takes 4"),
        ({"stages": 2, "device_map": (0, 256)}, "E3210", "1 to 256 IPUs, not 257"),
        ({"stages": 2, "device_map": ((1, 0), (1, 0))}, "E0564", "its ops make 1 part"),
        ({"stages": 2, "device_map": ((1, 2), (1, 2))}, "E0564", "its ops make 1 part"),
        ({"plan": "auto", "ipus": 2, "device_map": (1, 1)}, "E0507", "leaves out some of 2 IPUs"),
        ({"device_map": (0, 1)}, "E0507", "is for 2 stages; there is one"),
        ({"stages": 2, "device_map": "0,x"}, "E3011", "0,x"),
        ({"stages": 2, "ipus": 3}, "E0475", "3 IPUs were asked for; the program takes 2"),
        ({"stages": 4, "ipus": 2}, "E0475", "2 IPUs were asked for; the program takes 4"),
        ({"replicas": 2, "ipus": 5}, "E0475", "5 IPUs were asked for; the program takes 2"),
        ({"replicas": 0}, "E3011", "from 1 to"),
        ({"replicas": 257}, "E3210", "1 to 256"),
        ({"stages": 2, "replicas": 129}, "E3210", "1 to 256"),
        ({"schedule": "fast"}, "E3011", "grouped, interleaved, sequential"),
        ({"reduction": "max"}, "E3011", "sum, mean, running_mean"),
        ({"accumulator_dtype": "s32"}, "E3011", "f32, f16, bf16"),
        ({"micro_batches": 2, "loss_output": 99}, "E0501", "result 99 .* results 0 to 10"),
        ({"stages": 2, "loss_output": 3}, "E0501", "result 3 .* next value of state"),
        ({"stages": 2, "role": {"nothing": "weight"}}, "E3151", "'nothing'"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict[str, Any], code: str, said: str) -> None:
    error = refusal(STEP.text, **options)
    assert error.code == code
    with pytest.raises(HloipuError, match=said):
        raise error


def test_cuts_that_are_given_count_the_ops_of_every_layer() -> None:
    """Without `stages` as with: loops over layers are cut trip by trip either way."""
    text = Path("hlo_samples/scanned_blocks_train_step.hlo").read_text()
    for options in ({}, {"stages": 3}):
        error = refusal(text, loop=None, feed={}, cut_at=(5, 94), **options)
        assert (error.code, error.message) == (
            "E0506", "94 forward ops cannot be cut into 3 stages at 5,94",
        )  # fmt: skip


def scanned(outputs: bool) -> str:
    """Return three steps in a loop as HLO text."""

    def steps(state: Any, x: Any, y: Any) -> Any:
        new, losses = jax.lax.scan(lambda s, batch: STEP.whole(s, *batch), state, (x, y))
        return new, losses if outputs else losses.mean()

    batches = [STEP.batch(n) for n in range(3)]
    x, y = (np.stack(part) for part in zip(*batches, strict=True))
    lowered = jax.jit(steps, donate_argnums=0, keep_unused=True).lower(STEP.state(), x, y)
    text: str = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
    return text


@pytest.mark.parametrize(("outputs", "code"), [(True, "E0501"), (False, "E0504")])
def test_a_loop_of_whole_steps_has_no_micro_batches(outputs: bool, code: str) -> None:
    for options in ({"micro_batches": 2}, {"stages": 2}):
        error = refusal(scanned(outputs), **options)
        assert error.code == code
        assert error.hint
        with pytest.raises(HloipuError, match=r"the loop 'while[.0-9]*' makes the new state"):
            raise error


ALL_REDUCE = """HloModule m, replica_count=4

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}

ENTRY e {{
  p = f32[4] parameter(0)
  ROOT total = f32[4] all-reduce(p), replica_groups={}, to_apply=add
}}
"""


@pytest.mark.parametrize(
    ("groups", "options", "code"),
    [
        ("{{0,1}}", {}, "E0314"),
        ("{{0,1},{2,5}}", {}, "E0313"),
        ("{{0,1},{1,3}}", {}, "E0313"),
        ("{{0,1},{2,3}}", {"replicas": 2}, "E0510"),
        ("{{0,1},{2,3}}", {"ipus": 3}, "E0475"),
    ],
)
def test_groups_that_do_not_cover_the_replicas(
    groups: str, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(HloipuError) as caught:
        hloipu.compile(ALL_REDUCE.format(groups), target="tiny", cache=False, **options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--micro-batches", "0"), ""),
        (("--stages", "200"), "E0506"),
        (("--stages", "2", "--device-map", "0,2,1"), "E0507"),
        (("--stages", "2", "--ipus", "3"), "E0475"),
        (("--stages", "2", "--loss-output", "77"), "E0501"),
    ],
)
def test_the_command_says_so_without_a_traceback(
    words: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(STEP.text)
    said = run("compile", str(path), "--feed", f"data={FIRST},{FIRST + 1}", "--no-cache", *words)
    assert said.code not in (0, 1, 70)
    assert "Traceback" not in said.err
    assert (f"error[{code}]" in said.err) if code else ("--micro-batches" in said.err)


def test_what_would_cut_a_step_that_is_not_cut_is_said() -> None:
    given: dict[str, Any] = {"target": "tiny", "over_memory": "allow", "cache": False}
    asked: dict[str, Any] = {"schedule": "interleaved", "batch_serialization": 2}
    plain = hloipu.compile(STEP.text, **given, **asked).profile().options
    assert plain["cut"] == [
        "no stages or micro-batches: --schedule, --batch-serialization without effect"
    ]
    assert "cut" not in hloipu.compile(STEP.text, **given).profile().options
    divided: dict[str, Any] = {"mesh": {"a": 2}, "shard": {"*": "a"}}
    apart = hloipu.compile(STEP.text, **given, **divided, gather_weights="micro-batch").profile()
    assert apart.options["cut"][-1] == (
        "no stages or micro-batches: --gather-weights without effect"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, []),
        ({"schedule": "interleaved"}, ["one stage: --schedule without effect"]),
        ({"recompute": "full"}, ["no backward stage: --recompute without effect"]),
        ({"shard_optimizer": True}, ["one replica: --shard-optimizer without effect"]),
        (
            {"offload": "on", "offload_activations": True, "offload_accumulators": True},
            [f"{_NONE}: --offload, --offload-activations without effect"],
        ),
    ],
    ids=str,
)
def test_what_changes_nothing_of_a_step_that_is_cut_is_said(
    asked: dict[str, Any], said: list[str]
) -> None:
    given: dict[str, Any] = {"target": "tiny", "over_memory": "allow", "cache": False}
    cut = hloipu.compile(STEP.text, **given, micro_batches=2, **asked).profile().options["cut"]
    assert [line for line in cut if "without effect" in line] == said


def test_a_feed_that_ends_is_counted_in_elements() -> None:
    program = hloipu.compile(
        STEP.text, target="tiny", over_memory="allow", cache=False, loop=1, micro_batches=3,
        replicas=2, feed={"data": (FIRST, FIRST + 1)},
    )  # fmt: skip
    batches = [STEP.batch(n) for n in range(8)]
    state = [np.asarray(x) for x in jax.tree.leaves(STEP.state())]
    with program.session(state=state, infeeds={"data": iter(batches)}) as session:
        with pytest.raises(
            StreamEndedError, match="at element 8 of 12: its source has 8"
        ) as caught:
            session.run(2)
        assert (caught.value.code, session.steps) == ("E2020", 1)


def test_passes_that_a_cut_step_cannot_take_are_told_of() -> None:
    error = refusal(STEP.text, stages=2, passes="no-such-pass")
    assert error.code == "E3131"
    program = hloipu.compile(
        STEP.text, target="tiny", over_memory="allow", cache=False, loop=1, stages=2,
        passes="front,eliminate-dead-code", feed={"data": (FIRST, FIRST + 1)},
    )  # fmt: skip
    last = program.options["cut"][-1]
    assert last == "the step is cut: --passes front,eliminate-dead-code without effect"


@pytest.mark.parametrize(
    "options", [{"micro_batches": 4}, {"stages": 2}, {"plan": "auto", "ipus": 4}]
)
def test_a_step_that_reads_no_data_is_not_cut(options: dict[str, Any]) -> None:
    text = "HloModule m\n\nENTRY e {\n  ROOT a = f32[64] iota(), iota_dimension=0\n}\n"
    with pytest.raises(HloipuError, match="no op depends on data") as caught:
        hloipu.compile(text, target="tiny", cache=False, **options)
    assert caught.value.code == "E0506"


def test_numbers_are_data_where_a_step_takes_nothing_else() -> None:
    text = """HloModule m

ENTRY e {
  a = f32[] parameter(0)
  b = f32[3] broadcast(a), dimensions={}
  ROOT c = f32[3] negate(b)
}
"""
    program = hloipu.compile(text, target="tiny", micro_batches=4, cache=False)
    numbers = np.array([0.5, 1, 1.5, 2], np.float32)
    with program.session(infeeds={"data": iter((number,) for number in numbers)}) as session:
        session.run()
        outputs = [each.element for each in session.stream("result.0").drain()]
    expected = -np.repeat(numbers[:, None], 3, axis=1)
    np.testing.assert_array_equal(np.stack(outputs), expected)
