"""Ways in which the small text may be written otherwise, and what each computes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.support.poplar_small import (
    BACKWARD_0,
    CALLS,
    FEED,
    FORWARD_0,
    MICRO_BATCHES,
    PIPELINE,
    TAKEN,
    TEXT,
    TURNS,
    WEIGHTS,
    Array,
    changed,
    elements,
    trained,
)

Weights = list[NDArray[np.float64]]


@dataclass(frozen=True)
class Variant:
    """A text, what it is fed with, and what comes of it."""

    text: str
    weights: Weights
    sent: list[float]
    data: list[Array] = field(default_factory=elements)
    state: list[Array] = field(default_factory=list)
    """Arrays that a compiled program keeps besides the weights."""


def _same(text: str, data: list[Array] | None = None) -> Variant:
    weights, losses = trained()
    return Variant(text, weights, losses, elements() if data is None else data)


_CREATE, _ADD, _SINK = (
    f'custom_call_target="GradientAccumulator{x}"' for x in ("Create", "AddWithScale", "Sink")
)
_COUNTER = (
    'custom-call(), custom_call_target="ExecutionCounter", '
    'backend_config="{\\"lower_into_pipeline_stage\\":true}"'
)


def _moved() -> Variant:
    return _same(
        changed(
            ("  dw0 = f32[2] multiply(dh, x)",
             '  q = f32[2] custom-call(x), custom_call_target="Fifo", '
             'backend_config="{\\"depth\\":2}"\n  dw0 = f32[2] multiply(dh, q)'),
            ("call(h, w1), to_apply=forward_1", "call(hh, w1), to_apply=forward_1"),
            ("  f1 = ", '  hh = f32[2] custom-call(h), custom_call_target="InterIpuCopy"\n  f1 = '),
            ("  h = f32[2] multiply(x, w0)",
             '  n = () custom-call(), custom_call_target="StatefulNoop"\n'
             "  h = f32[2] multiply(x, w0)"),
        )
    )  # fmt: skip


def _opcodes() -> Variant:
    """Moves printed with a configuration of their own."""
    return _same(
        changed(
            ("  dw0 = f32[2] multiply(dh, x)",
             '  q = f32[2] custom-call(x), custom_call_target="RecomputationCheckpoint"\n'
             "  dw0 = f32[2] multiply(dh, q)"),
        )
    )  # fmt: skip


def _summed_loss(mean: bool) -> Variant:
    """The losses of an update are added up, and sent by the update."""
    text = changed(
        (f"  sent = token[] outfeed(loss, ready), outfeed_config={TAKEN}\n", ""),
        ("  ready = token[] after-all()\n  b1", "  b1"),
        ("  ru = ",
         f"  cl = f32[] custom-call(), {_CREATE}\n"
         f"  al = f32[] custom-call(cl, loss, one), {_ADD}\n"
         f"  gl = f32[] custom-call(al), {_SINK}\n  ru = "),
        ("call(g0, g1, w0, w1)", "call(g0, g1, w0, w1, gl)"),
        ("  n0 = f32[2] subtract(w0, g0)",
         "  gl = f32[] parameter(4)\n  ready = token[] after-all()\n"
         f"  sent = token[] outfeed(gl, ready), outfeed_config={TAKEN}\n"
         "  n0 = f32[2] subtract(w0, g0)"),
    )  # fmt: skip
    weights, losses = trained()
    data = elements()
    if mean:  # of four, so that halves are exact
        share = "  k4 = f32[] constant(0.25)\n  q4 = f32[2] broadcast(k4), dimensions={}\n"
        text = changed(
            ("  c0 = ", share + "  m0 = f32[2] multiply(dw0, q4)\n"
             "  m1 = f32[2] multiply(q4, dw1)\n  c0 = "),
            ("(c0, dw0, one)", "(c0, m0, one)"), ("(c1, dw1, one)", "(c1, m1, one)"),
            ("k = s32[] constant(3)", "k = s32[] constant(4)"), text=text,
        )  # fmt: skip
        data = elements(8)
        weights, losses = trained(4, TURNS, 0.25)
    count = len(losses) // TURNS
    sums = [sum(losses[n * count : (n + 1) * count]) for n in range(TURNS)]
    return Variant(text, weights, sums, data)


def _inference() -> Variant:
    start, end = PIPELINE.index("  b1 = "), PIPELINE.index("  ROOT out")
    cut = PIPELINE[:start] + PIPELINE[end:].replace("n0, n1, k", "w0, w1, k")
    losses = [float(np.sum(x * WEIGHTS[0] * WEIGHTS[1])) for x in elements()]
    return Variant(
        TEXT.replace(PIPELINE, cut), [np.asarray(w, np.float64) for w in WEIGHTS], losses
    )


def _constant_gradient() -> Variant:
    text = changed(
        ("  dw1 = f32[2] copy(h)",
         "  u = f32[] constant(2)\n  dw1 = f32[2] broadcast(u), dimensions={}"),
    )  # fmt: skip
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for turn in range(TURNS):
        data = elements()[turn * MICRO_BATCHES : (turn + 1) * MICRO_BATCHES]
        losses += [float(np.sum(x * w0 * w1)) for x in data]
        w0, w1 = w0 - sum(x * w1 for x in data), w1 - 2.0 * MICRO_BATCHES
    return Variant(text, [w0, w1], losses)


def _without_queue() -> Variant:
    fed = (
        "  ready = token[] after-all()\n"
        f"  feed = ((f32[2]), token[]) infeed(ready), infeed_config={FEED}\n"
        "  data = (f32[2]) get-tuple-element(feed), index=0\n"
        "  x = f32[2] get-tuple-element(data), index=0\n"
    )
    text = changed((FORWARD_0, FORWARD_0.replace(fed, "  x = f32[2] constant({1,2})\n")))
    x = np.array([1, 2], np.float64)
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for _ in range(TURNS):
        losses += [float(np.sum(x * w0 * w1))] * MICRO_BATCHES
        w0, w1 = w0 - MICRO_BATCHES * x * w1, w1 - MICRO_BATCHES * x * w0
    return Variant(text, [w0, w1], losses, [])


def _counted() -> Variant:
    """Stage 0 adds the number of its micro-batch."""
    text = changed(
        ("  h = f32[2] multiply(x, w0)",
         f"  n = s32[] {_COUNTER}\n  nf = f32[] convert(n)\n"
         "  ns = f32[2] broadcast(nf), dimensions={}\n  hx = f32[2] multiply(x, w0)\n"
         "  h = f32[2] add(hx, ns)"),
    )  # fmt: skip
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for turn in range(TURNS):
        g0, g1 = np.zeros(2), np.zeros(2)
        for n in range(MICRO_BATCHES):
            x = elements()[turn * MICRO_BATCHES + n]
            losses.append(float(np.sum((x * w0 + n) * w1)))
            g0, g1 = g0 + x * w1, g1 + x * w0 + n
        w0, w1 = w0 - g0, w1 - g1
    return Variant(text, [w0, w1], losses, state=[np.zeros((), np.int32)])


def _joined() -> Variant:
    """Both gradients go into one accumulator, and both weights are updated with the sum."""
    text = changed(
        (f"  c1 = f32[2] custom-call(), {_CREATE}\n", ""),
        ("(c1, dw1, one)", "(c0, dw1, one)"),
        (f"  g0 = f32[2] custom-call(a0), {_SINK}\n", ""),
        (f"  g1 = f32[2] custom-call(a1), {_SINK}\n",
         f"  g0 = f32[2] custom-call(a1, a0), {_SINK}\n"),
        ("call(g0, g1, w0, w1)", "call(g0, g0, w0, w1)"),
    )  # fmt: skip
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for turn in range(TURNS):
        data = elements()[turn * MICRO_BATCHES : (turn + 1) * MICRO_BATCHES]
        losses += [float(np.sum(x * w0 * w1)) for x in data]
        total = sum(x * w1 + x * w0 for x in data)
        w0, w1 = w0 - total, w1 - total
    return Variant(text, [w0, w1], losses)


def _single() -> Variant:
    weights, losses = trained(1, TURNS)
    return Variant(changed(("constant(3)", "constant(1)")), weights, losses, elements(TURNS))


def _unaccumulated() -> Variant:
    """One micro-batch, whose gradients the update reads as they are."""
    text = changed(
        ("constant(3)", "constant(1)"), ("call(g0, g1, w0, w1)", "call(dw0, g1, w0, w1)")
    )
    weights, losses = trained(1, TURNS)
    return Variant(text, weights, losses, elements(TURNS))


def _inside() -> Variant:
    """Backward stages add to accumulators that are handed to them, as after the plugin's passes."""
    return _same(
        changed(
            ("  dw0 = f32[2] multiply(dh, x)\n  ROOT out = (f32[2]) tuple(dw0)",
             "  dw0 = f32[2] multiply(dh, x)\n  c = f32[2] parameter(2)\n"
             "  one = f32[] constant(1)\n"
             f"  a = f32[2] custom-call(c, dw0, one), {_ADD}\n  ROOT out = (f32[2]) tuple(a)"),
            ("  b0 = (f32[2]) call(dh, x)",
             f"  c0 = f32[2] custom-call(w0), {_CREATE}\n  b0 = (f32[2]) call(dh, x, c0)"),
            (f"  c0 = f32[2] custom-call(w0), {_CREATE}\n"
             f"  a0 = f32[2] custom-call(c0, dw0, one), {_ADD}\n", ""),
            (f"custom-call(a0), {_SINK}", f"custom-call(dw0), {_SINK}"),
        )
    )  # fmt: skip


def _hoisted() -> Variant:
    """The queue is read before stage 0."""
    fed = (
        "  ready = token[] after-all()\n"
        f"  feed = ((f32[2]), token[]) infeed(ready), infeed_config={FEED}\n"
        "  data = (f32[2]) get-tuple-element(feed), index=0\n"
    )
    return _same(
        changed(
            (fed, "  data = (f32[2]) parameter(1)\n"),
            ("  f0 = (f32[2], f32[2]) call(w0)",
             fed.replace("ready", "first") + "  f0 = (f32[2], f32[2]) call(w0, data)"),
        )
    )  # fmt: skip


def _again() -> Variant:
    """A recomputation stage makes the first stage's output again, from what a queue kept."""
    text = changed(
        ("  b1 = (f32[2], f32[2]) call(h1, w1)",
         '  kept = f32[2] custom-call(x), custom_call_target="Fifo"\n'
         "  again = (f32[2]) call(kept, w0), to_apply=again_0, frontend_attributes="
         '{CALL_CONFIG_TYPE="PipelineStageRecomputation",PIPELINE_STAGE_ID="0"}\n'
         "  x.again = f32[2] get-tuple-element(again), index=0\n"
         "  b1 = (f32[2], f32[2]) call(h1, w1)"),
        ("  b0 = (f32[2]) call(dh, x)", "  b0 = (f32[2]) call(dh, x.again)"),
        ("forward_0 {", "again_0 {\n  x = f32[2] parameter(0)\n  w0 = f32[2] parameter(1)\n"
         "  h = f32[2] multiply(x, w0)\n  y = f32[2] divide(h, w0)\n"
         "  ROOT out = (f32[2]) tuple(y)\n}\n\nforward_0 {"),
    )  # fmt: skip
    w0, w1 = (np.asarray(w, np.float32) for w in WEIGHTS)
    losses = []
    for turn in range(TURNS):
        g0, g1 = np.zeros(2, np.float32), np.zeros(2, np.float32)
        for x in elements()[turn * MICRO_BATCHES : (turn + 1) * MICRO_BATCHES]:
            losses.append(float(np.sum(x * w0 * w1)))
            g0, g1 = g0 + w1 * (x * w0 / w0), g1 + x * w0
        w0, w1 = w0 - g0, w1 - g1
    return Variant(text, [np.asarray(w0, np.float64), np.asarray(w1, np.float64)], losses)


def _in_parts() -> Variant:
    """Each stage does two micro-batches, one after the other: six an update."""
    weights, losses = trained(2 * MICRO_BATCHES, TURNS)
    text = changed(
        ('PIPELINE_SCHEDULE="0"',
         'PIPELINE_SCHEDULE="2",PIPELINE_BATCH_SERIALIZATION_ITERATIONS="2"'),
    )  # fmt: skip
    return Variant(text, weights, losses, elements(2 * MICRO_BATCHES * TURNS))


def _wide() -> Variant:
    """Gradients in f16 are added up in f32."""
    return _same(
        changed(
            ("  dw0 = f32[2] multiply(dh, x)\n  ROOT out = (f32[2]) tuple(dw0)",
             "  dw = f32[2] multiply(dh, x)\n  dw0 = f16[2] convert(dw)\n"
             "  ROOT out = (f16[2]) tuple(dw0)"),
            ("  b0 = (f32[2]) call", "  b0 = (f16[2]) call"),
            ("  dw0 = f32[2] get-tuple-element(b0)", "  dw0 = f16[2] get-tuple-element(b0)"),
        )
    )  # fmt: skip


def _marked(kind: str, number: int, device: int) -> str:
    return (
        f'frontend_attributes={{CALL_CONFIG_TYPE="{kind}",PIPELINE_STAGE_ID="{number}"}}, '
        f"sharding={{maximal device={device}}}"
    )


def _branches() -> Variant:
    """Stage 0 has two branches, h = x w0 and k = x w1, and stage 1 the loss sum(h k)."""
    half = "(f32[2]) call(x, w{0}), to_apply=half_{0}, {1}"
    back = "(f32[2]) call(x, d{0}), to_apply=back_{0}, {1}"
    product = (
        "{name} {{\n  x = f32[2] parameter(0)\n  w = f32[2] parameter(1)\n"
        "  h = f32[2] multiply(x, w)\n  ROOT out = (f32[2]) tuple(h)\n}}\n\n"
    )
    parts = "".join(product.format(name=f"{a}_{n}") for a in ("half", "back") for n in (0, 1))
    forward = FORWARD_0.replace(
        "  h = f32[2] multiply(x, w0)\n  ROOT out = (f32[2], f32[2]) tuple(h, x)",
        "  w1 = f32[2] parameter(1)\n"
        f"  p0 = {half.format(0, _marked('PipelineStage', 0, 0))}\n"
        f"  p1 = {half.format(1, _marked('PipelineStage', 1, 1))}\n"
        "  h = f32[2] get-tuple-element(p0), index=0\n"
        "  k = f32[2] get-tuple-element(p1), index=0\n"
        "  ROOT out = (f32[2], f32[2], f32[2]) tuple(h, k, x)",
    )
    backward = (
        "backward_0 {\n  d0 = f32[2] parameter(0)\n  d1 = f32[2] parameter(1)\n"
        "  x = f32[2] parameter(2)\n"
        f"  p0 = {back.format(0, _marked('PipelineStageBackward', 0, 0))}\n"
        f"  p1 = {back.format(1, _marked('PipelineStageBackward', 1, 1))}\n"
        "  g0 = f32[2] get-tuple-element(p0), index=0\n"
        "  g1 = f32[2] get-tuple-element(p1), index=0\n"
        "  ROOT out = (f32[2], f32[2]) tuple(g0, g1)\n}"
    )
    text = changed(
        (FORWARD_0, parts + forward), (BACKWARD_0, backward),
        ("f0 = (f32[2], f32[2]) call(w0)", "f0 = (f32[2], f32[2], f32[2]) call(w0, w1)"),
        ("  x = f32[2] get-tuple-element(f0), index=1",
         "  kk = f32[2] get-tuple-element(f0), index=1\n"
         "  x = f32[2] get-tuple-element(f0), index=2"),
        ('PIPELINE_STAGE_ID="0"}\n  h =',
         'PIPELINE_STAGE_ID="0"}, sharding={maximal device=-1}\n  h ='),
        ("call(h, w1), to_apply=forward_1, frontend_attributes={CALL_CONFIG_TYPE=\"PipelineStage\","
         'PIPELINE_STAGE_ID="1"}',
         f"call(h, kk), to_apply=forward_1, {_marked('PipelineStage', 1, 2)}"),
        ("  h1 = f32[2] get-tuple-element(f1), index=1\n",
         "  h1 = f32[2] get-tuple-element(f1), index=1\n"
         "  k1 = f32[2] get-tuple-element(f1), index=2\n"),
        ("f1 = (f32[], f32[2]) call", "f1 = (f32[], f32[2], f32[2]) call"),
        ("  ROOT out = (f32[], f32[2]) tuple(loss, h)",
         "  ROOT out = (f32[], f32[2], f32[2]) tuple(loss, h, w1)"),
        ("call(h1, w1), to_apply=backward_1", "call(h1, k1), to_apply=backward_1"),
        ("b0 = (f32[2]) call(dh, x)", "b0 = (f32[2], f32[2]) call(dh, dw1, x)"),
        ("(c1, dw1, one)", "(c1, dk, one)"),
        ("  one = f32[] constant(1)\n",
         "  dk = f32[2] get-tuple-element(b0), index=1\n  one = f32[] constant(1)\n"),
    )  # fmt: skip
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    losses = []
    for turn in range(TURNS):
        data = elements()[turn * MICRO_BATCHES : (turn + 1) * MICRO_BATCHES]
        losses += [float(np.sum(x * w0 * x * w1)) for x in data]
        g0, g1 = sum(x * x * w1 for x in data), sum(x * x * w0 for x in data)
        w0, w1 = w0 - g0, w1 - g1
    return Variant(text, [w0, w1], losses)


VARIANTS: Mapping[str, Variant] = {
    "moves": _moved(),
    "checkpoints": _opcodes(),
    "accumulators in stages": _inside(),
    "hoisted queue": _hoisted(),
    "recomputation stage": _again(),
    "summed loss": _summed_loss(mean=False),
    "summed loss, mean gradients": _summed_loss(mean=True),
    "inference": _inference(),
    "batches in parts": _in_parts(),
    "branches": _branches(),
    "wide accumulator": _wide(),
    "constant gradient": _constant_gradient(),
    "without queue": _without_queue(),
    "counted micro-batches": _counted(),
    "joined accumulators": _joined(),
    "one micro-batch": _single(),
    "one micro-batch, unaccumulated": _unaccumulated(),
}
"""Name -> text and results."""

if CALLS not in TEXT:
    raise AssertionError("the calls are part of the text")
