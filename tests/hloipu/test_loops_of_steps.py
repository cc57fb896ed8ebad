"""Training loops inside a module that read queues, cut: against the same training in numpy."""

from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.on_demand import flat_step
from hloipu_runtime.errors import HloipuError

_CARRIED = "(s32[], s32[], f32[4,3], f32[3], f32[])"
_TURNS = 6
# As TensorFlow writes `for _ in tf.range(6)` with a queue's element taken in each iteration: two
# counters, two conditions. `{start}` is what a sum of losses begins with.
_TEXT = f"""\
HloModule train, input_output_alias={{ {{0}}: (0, {{}}, may-alias), {{1}}: (1, {{}}, may-alias) }}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

condition {{
  carried = {_CARRIED} parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  j = s32[] get-tuple-element(carried), index=1
  most = s32[] constant(1000)
  turns = s32[] constant({_TURNS})
  some = pred[] compare(i, most), direction=LT
  goes_on = pred[] compare(j, turns), direction=LT
  ROOT both = pred[] and(some, goes_on)
}}

body {{
  carried = {_CARRIED} parameter(0)
  i = s32[] get-tuple-element(carried), index=0
  j = s32[] get-tuple-element(carried), index=1
  w = f32[4,3] get-tuple-element(carried), index=2
  b = f32[3] get-tuple-element(carried), index=3
  total = f32[] get-tuple-element(carried), index=4
  ready = token[] after-all()
  in = ((f32[8,4], f32[8,3]), token[]) infeed(ready), infeed_config="train"
  element = (f32[8,4], f32[8,3]) get-tuple-element(in), index=0
  x = f32[8,4] get-tuple-element(element), index=0
  y = f32[8,3] get-tuple-element(element), index=1
  xw = f32[8,3] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bs = f32[8,3] broadcast(b), dimensions={{1}}
  guess = f32[8,3] add(xw, bs)
  off = f32[8,3] subtract(guess, y)
  zero = f32[] constant(0)
  squares = f32[8,3] multiply(off, off)
  squared = f32[] reduce(squares, zero), dimensions={{0,1}}, to_apply=add
  eighth = f32[] constant(0.125)
  loss = f32[] multiply(squared, eighth)
  sent = token[] outfeed(loss, ready), outfeed_config="loss"
  more = f32[] {{total}}
  quarter = f32[] constant(0.25)
  quarters = f32[8,3] broadcast(quarter), dimensions={{}}
  g = f32[8,3] multiply(off, quarters)
  dw = f32[4,3] dot(x, g), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  db = f32[3] reduce(g, zero), dimensions={{0}}, to_apply=add
  rate = f32[] constant(0.1)
  rates = f32[4,3] broadcast(rate), dimensions={{}}
  rates_b = f32[3] broadcast(rate), dimensions={{}}
  less = f32[4,3] multiply(rates, dw)
  less_b = f32[3] multiply(rates_b, db)
  w2 = f32[4,3] subtract(w, less)
  b2 = f32[3] subtract(b, less_b)
  one = s32[] constant(1)
  i2 = s32[] add(i, one)
  j2 = s32[] add(j, one)
  ROOT next = {_CARRIED} tuple(i2, j2, w2, b2, more)
}}

ENTRY main {{
  w = f32[4,3] parameter(0)
  b = f32[3] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  carried = {_CARRIED} tuple(zero, zero, w, b, nothing)
  loop = {_CARRIED} while(carried), condition=condition, body=body
  w2 = f32[4,3] get-tuple-element(loop), index=2
  b2 = f32[3] get-tuple-element(loop), index=3
  ROOT weights = (f32[4,3], f32[3]) tuple(w2, b2)
}}
"""
TEXT = _TEXT.replace("{total}", "copy(total)")
# The body in a call, as TensorFlow has it; and a token that goes from iteration to iteration.
CALLED = TEXT.replace("\nbody {", "\ninner {").replace(
    "\nENTRY main {",
    f"""
body {{
  carried = {_CARRIED} parameter(0)
  ROOT called = {_CARRIED} call(carried), to_apply=inner
}}

ENTRY main {{""",
)
_REPEAT = '{"callConfig":{"type":"RepeatLoop","repeatConfig":{"repeatCount":"6"}}}'
REPEATED = TEXT.replace(
    "while(carried), condition=condition, body=body",
    f"call(carried), to_apply=body, backend_config={_REPEAT}",
)
_WITH_TOKEN = _CARRIED.replace(")", ", token[])")
TOKENS = (
    TEXT.replace(_CARRIED, _WITH_TOKEN)
    .replace("token[] after-all()\n  in", "token[] get-tuple-element(carried), index=5\n  in")
    .replace("  element =", "  later = token[] get-tuple-element(in), index=1\n  element =")
    .replace("outfeed(loss, ready)", "outfeed(loss, later)")
    .replace("w2, b2, more)", "w2, b2, more, sent)")
    .replace("  carried = (s32[], s32[], f32[4,3], f32[3], f32[], token[]) tuple(zero",
             "  first = token[] after-all()\n"
             "  carried = (s32[], s32[], f32[4,3], f32[3], f32[], token[]) tuple(zero")
    .replace("w, b, nothing)", "w, b, nothing, first)")
)  # fmt: skip
SUMMING = _TEXT.replace("{total}", "add(total, loss)")
"""Carries something from step to step that is no parameter."""

_DRAWN = np.random.default_rng(3)
X = _DRAWN.normal(size=(12, 8, 4)).astype("f")
Y = _DRAWN.normal(size=(12, 8, 3)).astype("f")
W, B = _DRAWN.normal(size=(4, 3)).astype("f"), _DRAWN.normal(size=3).astype("f")


def trained(updates: int, elements: int) -> tuple[list[Any], list[float]]:
    """Return weights after updates by means over so many elements, and the loss of each element."""
    w, b = W.astype("d"), B.astype("d")
    losses: list[float] = []
    for n in range(updates):
        rows = slice(n * elements, (n + 1) * elements)
        off = X[rows] @ w + b - Y[rows]
        losses += list((off**2).sum((1, 2)) / 8)
        w = w - 0.1 * np.einsum("nbi,nbo->io", X[rows], off) / 4 / elements
        b = b - 0.1 * off.sum((0, 1)) / 4 / elements
    return [w, b], losses


@pytest.mark.parametrize(
    ("options", "updates", "elements"),
    [
        ({"micro_batches": 2}, 3, 2),
        ({"micro_batches": 3, "stages": 2}, 2, 3),
        ({"replicas": 2}, _TURNS, 2),
        ({"replicas": 2, "micro_batches": 2}, 3, 4),
    ],
)
def test_a_cut_loop_trains_as_its_text_says(
    options: dict[str, Any], updates: int, elements: int
) -> None:
    program = hloipu.compile(TEXT, target="tiny", over_memory="allow", cache=False, **options)
    weights, losses = trained(updates, elements)
    with program.session(state=[W, B], infeeds={"train": (X, Y)}) as session:
        session.run(updates)
        sent = [y for x in session.stream("loss").drain() for y in np.ravel(x.element)]
        found = list(session.state().values())
    np.testing.assert_allclose(sorted(sent), sorted(losses), rtol=1e-5)
    for ours, theirs in zip(found, weights, strict=True):
        np.testing.assert_allclose(ours.reshape(-1, *theirs.shape)[0], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("text", [CALLED, REPEATED, TOKENS], ids=["call", "repeat", "tokens"])
def test_other_forms_of_the_loop_train_alike(text: str) -> None:
    assert parse(text)
    program = hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, micro_batches=2, replicas=2
    )
    with program.session(state=[W, B], infeeds={"train": (X, Y)}) as session:
        session.run(3)
        found = list(session.state().values())
    for ours, theirs in zip(found, trained(3, 4)[0], strict=True):
        np.testing.assert_allclose(ours.reshape(-1, *theirs.shape)[0], theirs, rtol=1e-5, atol=1e-6)


def test_a_trainer_takes_such_a_text_as_its_step() -> None:
    trainer = hloipu.Trainer(TEXT, state=[W, B], target="tiny", over_memory="allow", cache=False)
    history = trainer.fit((X.reshape(96, 4), Y.reshape(96, 3)), progress=False)
    weights, losses = trained(12, 1)
    np.testing.assert_allclose(history.steps["loss"], losses, rtol=1e-5)
    assert isinstance(trainer.state, dict)
    for ours, theirs in zip(trainer.state.values(), weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_loop_that_carries_more_than_parameters_stays_and_it_is_said_why() -> None:
    found = flat_step(parse(SUMMING), is_cut=True)
    assert found is not None
    assert found.stated.lines() == [
        "the loop that reads queues stays a loop around whole steps, for value 4, 'nothing', "
        "goes from one update to the next, and is not a parameter of its own"
    ]
    with pytest.raises(HloipuError) as refused:
        hloipu.compile(SUMMING, target="tiny", micro_batches=2)
    assert refused.value.code == "E0501"
