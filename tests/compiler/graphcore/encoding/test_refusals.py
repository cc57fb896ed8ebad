"""What is no pipeline or loop of Graphcore's: texts wrong in one way, and what is said of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.plain_module import plain_module
from hloipu_compiler.graphcore.encoding.reading import flat_step
from tests.support.poplar_small import CALLS, PIPELINE, TAKEN, TEXT, changed, read
from tests.support.poplar_spelling import Spelling, Written
from tests.support.poplar_texts import text_of

_SINK = 'custom_call_target="GradientAccumulatorSink"'
_ADD = 'custom_call_target="GradientAccumulatorAddWithScale"'
_RU = "  ru = (f32[2], f32[2]) call(g0, g1, w0, w1)"
_UPDATES = 'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate"}'
_UPDATES_BESIDE = _UPDATES.replace("}", ',OFFLOAD_WEIGHT_UPDATE_VARIABLES="THREESTATE_ON"}')
_STAGE_1 = 'CALL_CONFIG_TYPE="PipelineStage",PIPELINE_STAGE_ID="1"'
_BACK_0 = 'CALL_CONFIG_TYPE="PipelineStageBackward",PIPELINE_STAGE_ID="0"'


def _on_devices(text: str, *devices: int) -> str:
    """Put stages on devices."""
    for stage, device in enumerate(devices):
        said = f'CALL_CONFIG_TYPE="PipelineStage",PIPELINE_STAGE_ID="{stage}"}}'
        text = changed((said, f"{said}, sharding={{maximal device={device}}}"), text=text)
    return text


LOOP = text_of(Written(form="loop"))
WHILE = text_of(Written(form="while"))

_JSON = 'backend_config="{\\"callConfig'
_NO_JSON = 'backend_config="\\"callConfig'
_FIRST, _SECOND = "  h = f32[2] multiply(x, w0)", "  l = f32[2] multiply(h, w1)"

WRONG: dict[str, tuple[str, str, str]] = {
    "unknown part": (
        "E0540", "ru", changed(('"ResourceUpdate"', '"ResourceUpdates"')),
    ),
    "stage without number": (
        "E0540", "f1", changed((_STAGE_1, 'CALL_CONFIG_TYPE="PipelineStage"')),
    ),
    "number that is none": (
        "E0540", "f1", changed((_STAGE_1, _STAGE_1.replace('"1"', '"one"'))),
    ),
    "huge number": (
        "E0540", "f1", changed((_STAGE_1, _STAGE_1.replace('"1"', f'"{10**30}"'))),
    ),
    "schedule that is none": (
        "E0540", "p", changed(('PIPELINE_SCHEDULE="0"', 'PIPELINE_SCHEDULE="3"')),
    ),
    "configuration that is no JSON": (
        "E0540", "p", LOOP.replace(_JSON, _NO_JSON),
    ),
    "loop without count": (
        "E0540", "p", LOOP.replace('\\"repeatCount\\":\\"8\\"', ""),
    ),
    "count that is no constant": (
        "E0541", "p", changed(("k = s32[] constant(3)", "k = s32[] parameter(2)")),
    ),
    "operand that is not there": (
        "E0541", "p",
        changed(('GradientAccumulationOperandIndex="2"', 'GradientAccumulationOperandIndex="9"')),
    ),
    "two counts": (
        "E0541", "ru",
        changed(("  n1 = f32[2] subtract(w1, g1)",
                 '  n = s32[] constant(5)\n  count = () custom-call(n), '
                 'custom_call_target="GradientAccumulationCount"\n'
                 "  n1 = f32[2] subtract(w1, g1)")),
    ),
    "loop without count of micro-batches": (
        "E0541", "p", LOOP.replace("GradientAccumulationCount", "StatefulNoop"),
    ),
    "two updates": (
        "E0542", "ru2",
        changed((_RU, f"  ru2 = (f32[2], f32[2]) call(g0, g1, w0, w1), to_apply=update, "
                 f"{_UPDATES_BESIDE}"
                 f"\n{_RU}")),
    ),
    "stage numbers with a gap": (
        "E0543", "f1", changed((_STAGE_1, _STAGE_1.replace('"1"', '"2"'))),
    ),
    "one stage twice": (
        "E0543", "f1", changed((_STAGE_1, _STAGE_1.replace('"1"', '"0"'))),
    ),
    "backward stage of none": (
        "E0543", "b0", changed((_BACK_0, _BACK_0.replace('"0"', '"2"'))),
    ),
    "sums without update": (
        "E0545", "n0", changed((f", to_apply=update, {_UPDATES}", ", to_apply=update")),
    ),
    "no stages": (
        "E0543", "p",
        TEXT.replace("PipelineStageBackward", "Call").replace("PipelineStage", "Call"),
    ),
    "parameter on two devices": (
        "E0544", "w0",
        _on_devices(changed(("call(h, w1), to_apply=forward_1", "call(h, w0), to_apply=forward_1")),
                    0, 1),
    ),
    "stage without device": (
        "E0544", "f1",
        changed(('PIPELINE_STAGE_ID="0"}\n  h ',
                 'PIPELINE_STAGE_ID="0"}, sharding={maximal device=0}'
                 "\n  h ")),
    ),
    "backward stage elsewhere": (
        "E0544", "b0",
        _on_devices(changed((_BACK_0 + "}", _BACK_0 + "}, sharding={maximal device=1}")), 0, 1),
    ),
    "value that skips a stage": (
        "E0544", "b1",
        changed(("call(h1, w1), to_apply=backward_1", "call(h, w1), to_apply=backward_1")),
    ),
    "queue in two stages": (
        "E0544", "f1",
        changed(("  l = f32[2] multiply(h, w1)",
                 "  r = token[] after-all()\n"
                 '  q = ((f32[2]), token[]) infeed(r), infeed_config="\\022\\001x"\n'
                 "  l = f32[2] multiply(h, w1)")),
    ),
    "queue before two stages": (
        "E0544", "q",
        changed(("  f0 = ",
                 '  first = token[] after-all()\n'
                 '  q = ((f32[2]), token[]) infeed(first), infeed_config="y"\n'
                 "  qs = (f32[2]) get-tuple-element(q), index=0\n"
                 "  qx = f32[2] get-tuple-element(qs), index=0\n  f0 = "),
                ("call(w0), to_apply=forward_0", "call(w0, qx), to_apply=forward_0"),
                ("call(h, w1), to_apply=forward_1", "call(h, w1, qx), to_apply=forward_1"),
                (_FIRST, f"  q = f32[2] parameter(1)\n{_FIRST}"),
                (_SECOND, f"  q = f32[2] parameter(2)\n{_SECOND}")),
    ),
    "effect between the stages": (
        "E0544", "effect",
        changed(("  one = f32[] constant(1)",
                 '  effect = f32[2] custom-call(h), custom_call_target="Host", '
                 "custom_call_has_side_effect=true\n  one = f32[] constant(1)")),
    ),
    "outfeed twice": (
        "E0544", "again",
        changed(("  b1 = ",
                 f"  again = token[] outfeed(loss, ready), outfeed_config={TAKEN}\n  b1 = ")),
    ),
    "update reads a micro-batch": (
        "E0545", "dw0", changed(("call(g0, g1, w0, w1)", "call(dw0, g1, w0, w1)")),
    ),
    "sum read too early": (
        "E0545", "c0",
        changed(("  one = f32[] constant(1)\n", "  one = f32[] constant(1)\n"),
                ("(c1, dw1, one)", "(c1, early, one)"),
                ("  c1 = ", "  early = f32[2] multiply(g0, dw1)\n  c1 = ")),
    ),
    "accumulator read before its sink": (
        "E0545", "early",
        changed(("(c1, dw1, one)", "(c1, early, one)"),
                ("  c1 = ", "  early = f32[2] multiply(a0, dw1)\n  c1 = ")),
    ),
    "sink of nothing": (
        "E0545", "c0", changed((f"custom-call(a0), {_SINK}", f"custom-call(c0), {_SINK}"),
                               (f"  a0 = f32[2] custom-call(c0, dw0, one), {_ADD}\n", "")),
    ),
    "sink of two accumulators": (
        "E0545", "g1", changed((f"custom-call(a1), {_SINK}", f"custom-call(a1, a0), {_SINK}")),
    ),
    "addition to no accumulator": (
        "E0545", "a0", changed(("(c0, dw0, one)", "(dw0, dw0, one)")),
    ),
    "accumulator of another shape": (
        "E0545", "c0",
        changed(("  c0 = f32[2] custom-call(w0)", "  c0 = f32[3] custom-call(w0)"),
                ("  a0 = f32[2]", "  a0 = f32[3]"),
                ("  g0 = f32[2] custom", "  g0 = f32[3] custom"),
                ("  g0 = f32[2] parameter(0)",
                 "  g3 = f32[3] parameter(0)\n  g0 = f32[2] slice(g3), slice={[0:2]}")),
    ),
    "update in no loop": (
        "E0546", "ru", LOOP[: LOOP.index("ENTRY")]
        + LOOP[LOOP.index("ENTRY"):].replace('\\"RepeatLoop\\"', '\\"Call\\"'),
    ),
    "turns that no update divides": (
        "E0546", "p", LOOP.replace('\\"repeatCount\\":\\"8\\"', '\\"repeatCount\\":\\"6\\"'),
    ),
    "while that no update divides": (
        "E0546", "p", WHILE.replace("limit = s32[] constant(8)", "limit = s32[] constant(7)"),
    ),
    "while of unknown turns": (
        "E0546", "p",
        WHILE.replace("compare(i, limit), direction=LT", "compare(t1, t2), direction=LT").replace(
            "  limit = s32[] constant(8)",
            "  t1 = f32[] get-tuple-element(state), index=6\n  t2 = f32[] constant(9)"),
    ),
    "decaying accumulator": (
        "E0547", "a0",
        changed(("(c0, dw0, one)", "(c0, dw0, less)"),
                ("  c0 = ", "  less = f32[] constant(0.5)\n  c0 = ")),
    ),
    "half a running mean": (
        "E0547", "c0",
        text_of(Written(reduction="running_mean")).replace("(c0, s0, old)", "(c0, dw0, old)"),
    ),
    "batches in parts": (
        "E0548", "p",
        changed(('PIPELINE_SCHEDULE="0"',
                 'PIPELINE_SCHEDULE="1",PIPELINE_BATCH_SERIALIZATION_ITERATIONS="4"')),
    ),
    "weights that are made first": (
        "E0549", "w0.d",
        changed(("  k = s32[] constant(3)", "  w0.d = f32[2] add(w0, w1)\n  k = s32[] constant(3)"),
                ("call(w0, w1, k), to_apply=pipeline", "call(w0.d, w1, k), to_apply=pipeline")),
    ),
}  # fmt: skip
"""What is wrong -> code, a name in the message, text."""


@pytest.mark.parametrize("what", WRONG)
def test_wrong_texts_are_refused_with_the_name_of_what_is_wrong(what: str) -> None:
    code, name, text = WRONG[what]
    module = read(text)
    with pytest.raises(PoplarError) as caught:
        flat_step(module)
    assert caught.value.code == code, caught.value
    assert f"'{name}" in caught.value.message, caught.value
    assert caught.value.hint
    assert caught.value.span is not None
    assert f"<text>:{caught.value.span.line}:{caught.value.span.column}: " in str(caught.value)


_SURVEY = """
import sys
from hloipu_compiler.graphcore.encoding.core.survey import survey
from hloipu_compiler.hlo.parse import parse
print(*[stage.call.name for stage in survey(parse(sys.stdin.read())).stages])
"""


def test_stages_come_in_one_order_whatever_the_hash_seed() -> None:
    """Errors name the first of them."""
    root = Path(__file__).parents[4]
    path = os.pathsep.join(map(str, (root / "compiler", root / "runtime")))
    for seed in range(3):
        found = subprocess.run(
            [sys.executable, "-c", _SURVEY], input=TEXT, text=True, capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path},
        )  # fmt: skip
        assert found.stdout.split() == ["f0", "f1", "b1", "b0"]


_BY_CUT = {"decaying accumulator", "half a running mean", "weights that are made first",
           "outfeed twice", "sum read too early", "accumulator read before its sink",
           "sink of nothing"}  # fmt: skip


@pytest.mark.parametrize("what", sorted(set(WRONG) - _BY_CUT))
def test_the_evaluator_refuses_what_has_no_meaning_either(what: str) -> None:
    code, _, text = WRONG[what]
    module = read(text)
    with pytest.raises(PoplarError) as caught:
        plain_module(module)
    assert caught.value.code == code, caught.value


def test_a_pipeline_within_deep_calls_is_refused_not_overrun() -> None:
    depth = 300
    chain = "".join(
        f"deep_{n} {{\n  v = f32[2] parameter(0)\n"
        + (f"  ROOT u = f32[2] call(v), to_apply=deep_{n - 1}\n}}\n\n" if n else
           "  ROOT u = f32[2] negate(v)\n}\n\n")
        for n in range(depth)
    )  # fmt: skip
    text = changed(
        ("forward_0 {", chain + "forward_0 {"),
        ("  h = f32[2] multiply(x, w0)",
         f"  y = f32[2] call(x), to_apply=deep_{depth - 1}\n  h = f32[2] multiply(y, w0)"),
    )  # fmt: skip
    with pytest.raises(PoplarError, match="deep") as caught:
        flat_step(read(text))
    assert caught.value.code == "E0549"


def test_marks_on_calls_of_a_plain_entry_are_no_pipeline() -> None:
    marked = TEXT[: TEXT.index("pipeline {")] + "ENTRY main {\n" + PIPELINE.split("{\n", 1)[1]
    plain = "\n".join(
        line for line in marked.splitlines() if "GradientAccumulator" not in line
    ).replace("call(g0, g1,", "call(dw0, dw1,")  # fmt: skip
    assert flat_step(read(plain)) is None
    assert CALLS in TEXT


def test_both_spellings_ask_for_the_same() -> None:
    for schedule in range(3):
        steps = [
            flat_step(read(text_of(Written(schedule=schedule, spelling=Spelling(as_json)))))
            for as_json in (False, True)
        ]
        assert steps[0] is not None
        assert steps[1] is not None
        assert steps[0].stated == steps[1].stated
        assert steps[0].stated.schedule == ("grouped", "interleaved", "sequential")[schedule]
