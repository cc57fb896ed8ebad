"""Limits: each stops its kind of text with a LimitError at a place, quickly, never recursing."""

import time

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits, TextLimitError
from hloipu_runtime.errors import HloipuError, LimitError


def _entry(line: str) -> str:
    return f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n  {line}\n}}\n"


MANY = 20_000
CASES = {
    "open tuples": ("E5003", _entry("a = " + "(" * MANY)),
    "deep tuple": ("E5003", _entry("a = " + "(" * 500 + "f32[]" + ")" * 500 + " copy(p)")),
    "braces": ("E5003", _entry("a = f32[4] abs(p), backend_config=" + "{" * MANY)),
    "literal": ("E5003", _entry("a = f32[4] constant(" + "{" * MANY)),
    "operands": ("E5003", _entry("a = f32[4] " + "abs(" * MANY + "p" + ")" * MANY)),
    "inline": (
        "E5003",
        _entry("a = f32[4] call(), to_apply=" + "{a = f32[] call(), to_apply=" * MANY),
    ),
    "rank": ("E5005", _entry("a = f32[" + "1," * 100 + "1] parameter(1)")),
    "elements": ("E5006", _entry("a = f32[9223372036854775807,2] parameter(1)")),
    "huge size": ("E5006", _entry("a = f32[" + "9" * 50_000 + "] parameter(1)")),
}


@pytest.mark.parametrize(("code", "text"), CASES.values(), ids=CASES)
def test_limit(code: str, text: str) -> None:
    """The error has a code, a place and the limit's name."""
    with pytest.raises(TextLimitError) as caught:
        parse(text)
    assert caught.value.code == code
    assert caught.value.span is not None
    assert caught.value.span.line == 4


def test_limits_can_be_changed() -> None:
    """What a limit refuses is read with a higher one."""
    text = _entry("a = (" + "f32[]," * 20 + "f32[]) parameter(1)")
    assert parse(text, limits=Limits(tuple_leaves=21)).instruction_count == 2
    for limits in (
        Limits(tuple_leaves=20), Limits(instructions=1), Limits(input_bytes=10),
        Limits(constant_bytes=1),
    ):  # fmt: skip
        with pytest.raises(TextLimitError):
            parse(text.replace("p = f32[4] parameter(0)", "p = f32[] constant(12)"), limits=limits)


HOSTILE = {
    "undefined": "\n".join(f"a{i} = f32[4] abs(q{i})" for i in range(8_000)),
    "unknown": "\n".join(f"a{i} = f32[4] abs{i}(p)" for i in range(8_000)),
    "twice": "a = f32[4] abs(p)" + ", b=1" * 40_000,
    "nested": "a = (f32[4]) tuple(" + "abs(p), " * 20_000 + "p)",
    "unclosed": 'a = f32[4] abs(p), metadata={op_name="' + 'x\\"' * 60_000,
    "sizes": "a = f32[" + "1," * 100_000 + "x] abs(p)",
    "leaves": "a = (" + "f32[]," * 30_000 + ",) parameter(1)",
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_bounded_time(line: str) -> None:
    """Hostile texts end in an error within time linear in their size (generously measured)."""
    text = _entry(line)
    start = time.process_time()
    with pytest.raises(HloipuError) as caught:
        parse(text)
    str(caught.value)
    assert time.process_time() - start < 1 + 10e-6 * len(text)


def test_tuples_that_double_stop_at_the_limit_of_inferred_leaves() -> None:
    doublings = "".join(f" t{i} = tuple(t{i - 1}, t{i - 1})\n" for i in range(1, 60))
    text = f"HloModule m\nENTRY e {{\n t0 = f32[] parameter(0)\n{doublings}}}\n"
    with pytest.raises(LimitError) as caught:
        parse(text)
    assert caught.value.limit == "inferred_leaves"
