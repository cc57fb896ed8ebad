"""Programs that stay on one device together, with arrays in common, against numpy."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import HloipuError, StreamError
from hloipu_runtime.memory.does_not_fit import DoesNotFit

W = np.arange(6, dtype=np.float32)
X = np.full(6, 2, np.float32)

TRAIN = """HloModule train
ENTRY e {
  w = f32[6] parameter(0), metadata={op_name="state['w']"}
  n = s32[] parameter(1), metadata={op_name="state['n']"}
  x = f32[6] parameter(2)
  moved = f32[6] add(w, x)
  one = s32[] constant(1)
  next = s32[] add(n, one)
  ROOT r = (f32[6], s32[]) tuple(moved, next)
}
"""
"""w += x, n += 1."""

PREDICT = """HloModule predict
ENTRY e {
  w = f32[6] parameter(0), metadata={op_name="params['w']"}
  x = f32[6] parameter(1)
  ROOT y = f32[6] multiply(w, x)
}
"""


def train(target: str = "tiny", **options: Any) -> hloipu.CompiledProgram:
    roles = {"state": "carry", "2": "const"}
    return hloipu.compile(TRAIN, loop=2, role=roles, target=target, **options)


def predict(kind: str) -> hloipu.CompiledProgram:
    """Return the prediction with its weight given with each call, as state, or as a constant."""
    if kind == "call":
        return hloipu.compile(PREDICT, target="tiny")
    if kind == "constant":
        return hloipu.compile(PREDICT, loop=1, feed={"data": (1,)}, role={"0": "const"},
                              outfeed=["y"], target="tiny")  # fmt: skip
    text = PREDICT.replace("ROOT y", "y").rstrip("}\n")
    text += "\n  ROOT r = (f32[6], f32[6]) tuple(w, y)\n}\n"
    return hloipu.compile(text, loop=1, role={"0": "weight", "1": "call"}, target="tiny")


NAMES = {"params": "state"}


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("kind", ["call", "state", "constant"])
def test_what_one_program_writes_the_other_reads(kind: str, mode: str) -> None:
    device = hloipu.Device("tiny", ipus=1)
    first = device.load(train(), state={0: W, 1: np.int32(0)}, constants={"x": X}, mode=mode)
    infeeds = {"data": [X] * 5} if kind == "constant" else {}
    second = device.load(predict(kind), names=NAMES, mode=mode, infeeds=infeeds)

    def predicted() -> Any:
        run = second.run(inputs={} if infeeds else {"x": X})
        return second.stream("y").drain()[0].element if infeeds else run.outputs[-1]

    for steps in (0, 2, 4, 0):
        first.run(steps)
        np.testing.assert_array_equal(predicted(), (W + first.steps * X) * X)
    assert device.swaps == 0
    assert device.arrays["state['w']"] == "f32[6]"
    first.close()
    assert "state['n']" not in device.arrays
    np.testing.assert_array_equal(predicted(), (W + 6 * X) * X)


def test_whoever_wrote_last_is_read() -> None:
    device = hloipu.Device()
    one = device.load(train(), state={0: W, 1: np.int32(0)}, constants={2: X})
    two = device.load(train(), names={"x": "other"}, constants={2: -X})
    one.run(4)
    two.run(2)
    np.testing.assert_array_equal(one.state()["state['w']"], W + 4 * X - 2 * X)
    two.run(2)
    one.run(2)
    assert int(two.state()["state['n']"]) == 10
    np.testing.assert_array_equal(two.state()["state['w']"], W + 2 * X)


def test_parameters_without_names_are_each_program_s_own() -> None:
    text = PREDICT.replace("params", "state").replace("  ROOT y = f32[6] multiply(w, x)", (
        "  Arg_2.1 = f32[6] parameter(2)\n  v = f32[6] multiply(w, Arg_2.1)\n"
        "  ROOT y = f32[6] multiply(v, x)"
    ))  # fmt: skip
    roles = {"0": "const", "2": "const"}
    scaled = hloipu.compile(text, loop=1, feed={"data": (1,)}, outfeed=["y"], role=roles,
                            target="tiny")  # fmt: skip
    device = hloipu.Device()
    first = device.load(train(), state={0: W, 1: np.int32(0)}, constants=[X])
    for scale in (2, 3):
        own = {2: np.full(6, scale, np.float32)}
        second = device.load(scaled, constants=own, infeeds={"data": [X] * 2})
        first.run(2)
        second.run(1)
        found = second.stream("y").drain()[0].element
        np.testing.assert_array_equal(found, (W + first.steps * X) * X * scale)


def test_replicas_give_what_they_agree_on(tmp_path: Any) -> None:
    text = PREDICT.replace('"params', '"state')
    device = hloipu.Device()
    many = device.load(train(replicas=2), state={0: W, 1: np.int32(0)}, constants={2: X})
    few = device.load(hloipu.compile(text, target="tiny"))
    many.run(2)
    np.testing.assert_array_equal(few.run(inputs={1: X}).outputs[0], (W + 2 * X) * X)
    many.save_state(tmp_path / "now.ckpt")
    many.run(2)
    many.load_state(tmp_path / "now.ckpt")
    np.testing.assert_array_equal(few.run(inputs={1: X}).outputs[0], (W + 2 * X) * X)


def test_a_layout_of_its_own_is_exchanged_into_and_costs_cycles() -> None:
    """Through the host where it comes with each call, a transfer each way; else on the device."""
    device = hloipu.Device()
    first = device.load(train(), state={0: W, 1: np.int32(0)}, constants={2: X})
    called = device.load(predict("call"), names=NAMES)
    called.run(inputs={1: X})
    before = called.loading_cycles
    assert before > 0
    called.run(inputs={1: X})
    assert called.loading_cycles == before  # nothing has changed
    first.run(2)
    run = called.run(inputs={1: X})
    assert called.loading_cycles == 2 * before
    assert run.cycles == before + (predict("call").estimate().total_cycles or 0)


@pytest.mark.parametrize(
    ("load", "code"),
    [
        (lambda d: d.load(hloipu.compile(TRAIN.replace("6]", "7]"), loop=1, role={"state": "carry",
                          "2": "const"}, target="tiny")), "E2046"),
        (lambda d: d.load(train(), state={0: W}), "E2046"),
        (lambda d: d.load(train(), constants={2: X}), "E2046"),
        (lambda d: d.load(train("bow")), "E2043"),
        (lambda d: d.load(train(replicas=2)), "E2043"),
        (lambda d: d.load(train(), names={"weights": "state"}), "E2063"),
        (lambda d: d.load("train.hlo"), "E3180"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(load: Any, code: str) -> None:
    device = hloipu.Device("tiny", ipus=1)
    device.load(train(), state={0: W, 1: np.int32(0)}, constants={2: X})
    with pytest.raises(HloipuError) as caught:
        load(device)
    assert caught.value.code == code


def test_memory_of_all_together_has_to_suffice() -> None:
    """An array in common counts once, one of another name again, one that was closed no more."""
    size = 4 * 13_000

    def big(name: str) -> hloipu.CompiledProgram:
        text = (
            f"HloModule {name}\nENTRY e {{\n  {name} = f32[{size}] parameter(0)\n"
            f"  one = f32[] constant(1)\n  ones = f32[{size}] broadcast(one), dimensions={{}}\n"
            f"  ROOT r = f32[{size}] add({name}, ones)\n}}\n"
        )
        return hloipu.compile(text, loop=1, role={"0": "weight"}, target="tiny")

    zeros = np.zeros(size, np.float32)
    device = hloipu.Device()
    used = big("a").memory.peak.total_bytes / big("a").memory.available_bytes
    assert 0.5 < used < 1, used
    first = device.load(big("a"), state=[zeros])
    device.load(big("a")).close()
    with pytest.raises(DoesNotFit, match=r"2 programs together: a .*, b .* always") as caught:
        device.load(big("b"), state=[zeros])
    assert caught.value.code == "E1004"
    first.close()
    device.load(big("b"), state=[zeros]).run()


def test_one_program_runs_at_a_time() -> None:
    device = hloipu.Device()
    first = device.load(train(), state={0: W, 1: np.int32(0)}, constants={2: X})
    second = device.load(train())
    seen: list[str] = []

    def inside(_: int) -> None:
        with pytest.raises(StreamError) as caught:
            second.run(2)
        seen.append(caught.value.code)

    first.run(2, progress=inside)
    assert set(seen) == {"E2061"}
