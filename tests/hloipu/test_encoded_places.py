"""Texts in Graphcore's encoding that say where things are: parts on replicas, shards, both ways."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.graphcore.encoding.reading import flat_step
from hloipu_runtime.compiled import CompiledProgram
from tests.support.poplar_parts import START, Parts
from tests.support.poplar_parts import TURNS as UPDATES
from tests.support.poplar_shards import TURNS, sharded_loop, shards_trained
from tests.support.poplar_small import TEXT, WEIGHTS, changed, elements, read


def compiled(text: str, **options: Any) -> CompiledProgram:
    """Compile a text for a small machine."""
    return hloipu.compile(text, target="tiny", over_memory="allow", cache=False, **options)


@pytest.mark.parametrize(("replicas", "clustered"), [(2, False), (3, True), (4, True)])
def test_state_that_is_spread_over_replicas_is_updated(replicas: int, clustered: bool) -> None:
    parts = Parts(replicas, clustered)
    program = compiled(parts.text, replicas=replicas)
    with program.session(state=START, infeeds={"x": iter([(x,) for x in parts.data])}) as session:
        session.run(UPDATES)
        made = list(session.state().values())
    np.testing.assert_array_equal(made, parts.state)


def test_groups_say_how_many_replicas_there_are() -> None:
    assert compiled(Parts(2, clustered=True).text).program.replicas == 2


@pytest.mark.parametrize(
    ("form", "micro_batches"), [("repeat", 0), ("repeat", 2), ("while", 1), ("while", 2)]
)
def test_sharded_loops_keep_their_devices(form: str, micro_batches: int) -> None:
    text = sharded_loop(form, micro_batches)
    program = compiled(text)
    assert program.program.ipus == 2
    feeds = {"x": iter([(x,) for x in elements(TURNS)])}
    if micro_batches:
        step = flat_step(read(text))
        assert step is not None
        assert step.stated.schedule == ("sequential" if micro_batches > 1 else "")
        with program.session(state=list(WEIGHTS), infeeds=feeds) as session:
            session.run(step.stated.loop or 1)
            made = list(session.state().values())
    else:
        with program.session(constants=dict(enumerate(WEIGHTS)), infeeds=feeds) as session:
            made = list(session.run().outputs)
    np.testing.assert_array_equal(made, shards_trained(micro_batches))


def test_a_loop_that_comes_back_to_a_device_has_no_stages_and_keeps_its_devices() -> None:
    text = sharded_loop("repeat", 2, comes_back=True)
    step = flat_step(read(text))
    assert step is not None
    assert (step.stated.micro_batches, step.stated.stages) == (2, None)
    program = compiled(text)
    assert "  each on 2 IPUs" in program.options["cut"]
    feeds = {"x": iter([(x,) for x in elements(TURNS)])}
    with program.session(state=list(WEIGHTS), infeeds=feeds) as session:
        session.run(step.stated.loop or 1)
        made = list(session.state().values())
    np.testing.assert_array_equal(made, shards_trained(2))


def _without_update() -> str:
    """Return the small pipeline with its gradients handed out, and no update."""
    start, end = (
        TEXT.index("  one = f32[] constant(1)"),
        TEXT.index("  ROOT out = (f32[2], f32[2], s"),
    )
    sent = """  both = (f32[2], f32[2]) tuple(dw0, dw1)
  ready3 = token[] after-all()
  sent3 = token[] outfeed(both, ready3), outfeed_config="\\022\\001g"
"""
    text = TEXT[:start] + sent + TEXT[end:]
    unused = text[text.index("update {") : text.index("pipeline {")]
    return changed((unused, ""), ("tuple(n0, n1, k)", "tuple(w0, w1, k)"), text=text)


@pytest.mark.parametrize("schedule", [None, "sequential"])
def test_pipelines_may_go_backward_and_update_nothing(schedule: str | None) -> None:
    program = compiled(_without_update(), schedule=schedule)
    assert program.program.ipus == 2
    data = elements()
    feeds = {"x": iter([(x,) for x in data])}
    with program.session(state=list(WEIGHTS), infeeds=feeds) as session:
        session.run(2)
        made = [x.element for x in session.stream("g").drain()]
        losses = [x.element for x in session.stream("l").drain()]
    for (g0, g1), loss, x in zip(made, losses, data, strict=True):
        np.testing.assert_array_equal([g0, g1], [x * WEIGHTS[1], x * WEIGHTS[0]])
        assert np.asarray(loss).item() == np.sum(x * WEIGHTS[0] * WEIGHTS[1])
