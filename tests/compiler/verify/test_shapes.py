"""Result shapes: what the text declares is what the operation gives."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused, faults_in


def test_a_wrong_result_shape_is_shown_under_the_shape() -> None:
    """The declared shape is the fault's place, the inferred one is what was expected."""
    (fault,) = check_refused(
        """HloModule m

ENTRY e {
  p = f32[4] parameter(0)
  ROOT n = «f32[5]» negate(p)
}
""",
        "E0301",
    )
    assert "f32[5]" in fault.message
    assert "f32[4]" in fault.expected


def test_each_wrong_instance_is_reported() -> None:
    """Two instructions that are wrong alike are two faults."""
    found = faults_in(
        """HloModule m
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[5] negate(p)
  ROOT b = f32[5] negate(p)
}
"""
    )
    assert [(f.code, f.span.line if f.span else 0) for f in found] == [("E0301", 4), ("E0301", 5)]


def test_layouts_and_operand_shapes_in_the_text_do_not_matter() -> None:
    """Layouts are not compared, and comments and shapes on operands do not disturb."""
    check_accepted(
        """HloModule m
ENTRY %e (p: f32[2,3]) -> f32[2,3] {
  %p = f32[2,3]{1,0} parameter(0)
  ROOT %n = f32[2,3]{0,1} /* a comment */ negate(f32[2,3]{1,0} %p)
}
"""
    )


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("ROOT n = f32[4] add(p, «q»)", ["E0205"]),
        ("ROOT n = f32[2,2] reshape(«p»)", []),
        ("ROOT n = f32[4] transpose(p), «dimensions={1}»", ["E0207", "E0208"]),
    ],
)
def test_shape_faults_point_at_the_operand_or_attribute(text: str, codes: list[str]) -> None:
    """A fault that names an operand or attribute stands under it."""
    plain = text.replace("«", "").replace("»", "")
    module = (
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  q = f32[5] parameter(1)\n"
        f"  {plain}\n}}\n"
    )
    found = faults_in(module)
    if not codes:
        assert not found
        return
    (fault,) = found
    assert fault.code in codes
    assert fault.span is not None
    assert fault.span.line == 5
    assert fault.span.column == 3 + text.index("«")


def test_thousands_of_faults_are_bounded_and_in_text_order() -> None:
    """The list stops at its bound, in ascending order of position."""
    lines = "\n".join(f"  a{i} = f32[5] negate(p)" for i in range(3000))
    found = faults_in(
        f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n{lines}\n"
        "  ROOT r = f32[4] negate(p)\n}\n"
    )
    assert len(found) == 1000
    places = [f.span.start for f in found if f.span]
    assert places == sorted(places)
