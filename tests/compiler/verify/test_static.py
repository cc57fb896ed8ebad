"""What a machine with fixed sizes cannot take."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.verify.static import NotStaticError, require_static, unsupported
from tests.support.marked_text import marked


def _module(lines: str) -> str:
    return f"HloModule m\nENTRY e {{\n{lines}}}\n"


@pytest.mark.parametrize(
    "lines",
    [
        "  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n",
        "  p = f32[4] parameter(0)\n  ROOT n = s32[] get-dimension-size(p), dimensions={0}\n",
        '  p = f32[4] parameter(0)\n  ROOT n = f32[4] custom-call(p), custom_call_target="who"\n',
    ],
)
def test_static_modules_pass(lines: str) -> None:
    """Unknown custom calls are not judged here."""
    module = parse(_module(lines))
    assert unsupported(module) == []
    require_static(module)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("  p = «f32[<=4]» parameter(0)\n  ROOT n = f32[<=4] negate(p)\n", "E0401"),
        ("  p = «f32[2,?]» parameter(0)\n  ROOT n = f32[2,?] negate(p)\n", "E0402"),
        ("  p = «(f32[2], f32[<=3])» parameter(0)\n"
         "  ROOT n = f32[<=3] get-tuple-element(p), index=1\n", "E0401"),
        ("  p = f32[4] parameter(0)\n  n = s32[] parameter(1)\n"
         "  ROOT s = f32[<=4] «set-dimension-size»(p, n), dimensions={0}\n", "E0403"),
        ("  p = f32[4] parameter(0)\n  n = s32[] parameter(1)\n"
         "  ROOT s = f32[2,<=2] «dynamic-reshape»(p, n, n)\n", "E0403"),
    ],
)  # fmt: skip
def test_each_source_of_dynamic_sizes_is_named_once(lines: str, code: str) -> None:
    """The instruction that brings the size in, not those that compute with it."""
    wrong = marked(_module(lines))
    (fault,) = unsupported(parse(wrong.text))
    assert fault.code == code
    span = fault.span
    assert span is not None
    assert (span.line, span.column, span.end - span.start) == wrong.place


def test_the_error_exits_with_4() -> None:
    """Valid, but not for this machine."""
    module = parse(_module("  ROOT p = f32[<=4] parameter(0)\n"))
    with pytest.raises(NotStaticError, match="only a bound, 4") as raised:
        require_static(module)
    assert raised.value.exit_code == 4
    assert "line" not in str(raised.value)
    assert ":3:" in str(raised.value)
