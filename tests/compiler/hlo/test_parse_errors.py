"""Messages of the parser: code, line, column and length of what is marked."""

import pytest

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo.parse import parse
from tests.support.marked_text import marked

_HEAD = "HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0)\n"


def _entry(lines: str) -> str:
    return f"{_HEAD}  {lines}\n}}\n"


CASES = [
    ("E0101", _entry("ROOT n = f32[4] negate(p«;»")),
    ("E0101", _entry("ROOT n = f32[4] negate(p,«)»")),
    ("E0101", _entry("ROOT n = f32[4] negate(p), «}»")),
    ("E0101", _entry("«n=» f32[4] negate(p)")),
    ("E0101", _entry("ROOT n = f32[4«;»2] negate(p)")),
    ("E0101", _entry("ROOT n = f32[4] negate(p) «é»")),
    ("E0101", _entry("ROOT n = f32[4] negate(p), metadata=«]»")),
    ("E0102", _entry('ROOT n = f32[4] negate(p), sharding={«"»}')),
    ("E0103", _entry("ROOT n = f32[4] negate(p), sharding=«{»{{replicated")),
    ("E0104", _entry("ROOT n = f32[4] negate(p) «\0»")),
    ("E0113", _entry("ROOT n = f32[4]«{»1,0} negate(p)")),
    ("E0101", _entry("ROOT n = f32[4] reverse(p), dimensions=«0»")),
    ("E0125", _entry("ROOT n = f32[4] reverse(p), dimensions={0}, «dimensions»={0}")),
    ("E0126", _entry("ROOT n = f32[4] negate(p), «dimensions»={0}")),
    ("E0127", _entry("ROOT n = f32[4] «reverse»(p)")),
    ("E0128", _entry("ROOT «__n» = f32[4] negate(p)")),
    ("E0129", _entry("ROOT n = f32[4] negate(«q»)")),
    ("E0130", _entry("ROOT n = f32[4] «negat»(p)")),
    ("E0131", _entry("ROOT n = f32[4] «add»(p)")),
    ("E0131", _entry("ROOT n = (f32[4]) «tuple»(p, p)")),
    ("E0132", _entry("ROOT n = «slice»(p), slice={[0:2]}")),
    ("E0134", _entry("ROOT n = f32[4] negate(«f32[5]» p)")),
    ("E0136", _entry("ROOT n = f32[8] concatenate(p, p), dimensions=«{0,1}»")),
    ("E0139", _entry("ROOT n = pred[4] compare(p, p), direction=«LESS»")),
    ("E0141", _entry("ROOT c = f32[2] constant({1, 2, «3»})")),
    ("E0160", _entry("«p» = f32[4] negate(p)")),
    ("E0166", _entry("q = f32[4] parameter(«0»)")),
    ("E0169", _entry("ROOT c = f32[4] call(p), to_apply=«f»")),
    ("E0162", "ENTRY a { x = f32[] parameter(0) }\n«ENTRY» b { x = f32[] parameter(0) }\n"),
    ("E0164", "ENTRY a (x: f32[]) -> «f32[5]» { x = f32[] parameter(0) }\n"),
    ("E0167", _entry("ROOT a = f32[4] negate(p)\n  «ROOT» b = f32[4] negate(p)")),
    ("E0168", "ENTRY a { x = f32[] parameter(0) «y = f32[] parameter(2)» }\n"),
]


@pytest.mark.parametrize(("code", "text"), CASES, ids=lambda x: x if len(x) == 5 else "")
def test_place(code: str, text: str) -> None:
    """Each fault is at the marked characters."""
    case = marked(text)
    with pytest.raises(ParseError) as caught:
        parse(case.text)
    fault = caught.value.faults[0]
    assert fault.code == code
    assert fault.span is not None
    assert (fault.span.line, fault.span.column) == case.place[:2], str(fault)
    if code != "E0101":
        assert fault.span.end - fault.span.start == case.place[2], str(fault)


def test_all_faults_are_reported_in_text_order() -> None:
    """Faults of meaning do not hide each other, and do not breed."""
    text = _entry(
        "a = f32[4] negat(p)\n  b = f32[4] add(p)\n  c = f32[4] add(a, b)\n  d = f32[] abs(z)"
    )
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert [fault.code for fault in caught.value.faults] == ["E0130", "E0131", "E0129"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (_entry("ROOT n = f32[4] negat(p)"), "did you mean negate?"),
        (_entry("half = f32[4] negate(p)\n  n = f32[4] abs(hlaf)"), "did you mean half?"),
        (_entry("n = f32[2] slice(p), slise={[0:2]}"), "slice= is the right spelling"),
        (_entry("n = f32[2] slice(p), slice={[0:2]}, dimensions={0}"), "slice takes slice="),
        (_entry("n = pred[4] compare(p, p), direction=lt"), "did you mean LT?"),
        (_entry("n= f32[4] abs(p)"), "write a blank before the = sign: n ="),
        (_entry("ROOT n = f33[4] negate(p)"), "did you mean f32?"),
        (_entry("n = f32[4] negate(p, dimensions={0}"), "close the operands with )"),
        ("module @jit_f {\n  func.func public @main()", "StableHLO"),
        ('hlo_module {\n  name: "m"\n}\n', "protobuf as text"),
        ("HloModule m\nENTRY e (p : f32[]) -> f32[] { p = f32[] parameter(0) }", "a colon stands"),
    ],
)
def test_hints(text: str, hint: str) -> None:
    """Near misses are named."""
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert hint in caught.value.faults[0].hint


def test_expectations_are_plain_words() -> None:
    """No terminal of the grammar shows in a message."""
    with pytest.raises(ParseError) as caught:
        parse(_entry("ROOT n = f32[4] add(p p)"))
    assert caught.value.faults[0].message == "unexpected p"
    assert caught.value.faults[0].expected == "`)` or `,`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text ends here"),
        ("\n \n", "the text ends here"),
        (_HEAD + "  ROOT n = f32[4] negate(p)\n", "the text ends here"),
        (_entry("n\x1b = f32[4] negate(p)"), "unexpected character U+001B"),
        (_entry("n = f32[-4] negate(p)"), "a negative size"),
        (_entry('"n" = f32[4] negate(p)'), 'unexpected "n"'),
        (_entry('"n = f32[4] negate(p)'), "this string is never closed"),
        (_entry('n = f32[4] custom-call(p), custom_call_target="\\q"'), "an unknown escape"),
    ],
)
def test_what_was_found_is_said_in_plain_words(text: str, message: str) -> None:
    """Ends, blanks and control characters have names."""
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in caught.value.faults[0].message


def test_a_printed_line_that_uses_a_faulty_one_reports_the_faulty_one() -> None:
    """The fast path meets a name whose own line had faults, and must not take it for a position."""
    text = (
        "HloModule m\nENTRY e {\n p = f32[-1] parameter(0)\n ROOT c = f32[] custom-call(p), "
        'custom_call_target="x", output_to_operand_aliasing={{}: (0, {})}\n}\n'
    )
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert [fault.span.line for fault in caught.value.faults if fault.span] == [3]


@pytest.mark.parametrize("layout", ["{99}", "{1}"])
def test_a_typed_literal_is_laid_out_by_its_layout_which_must_be_an_order(layout: str) -> None:
    text = (
        'ENTRY main {\n  ROOT r = s32[2] custom-call(), custom_call_target="f", '
        f"literal=s32[2]{layout} {{1, 2}}\n}}\n"
    )
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.faults[0].code == "E0121"
