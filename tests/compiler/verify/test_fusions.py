"""Fusions: one owner, no dead code, parameters as operands."""

from tests.support.verifier_cases import check_accepted, check_refused, faults_in

_BODY = """HloModule m
f {
  p = f32[4] parameter(0)
  ROOT r = f32[4] negate(p)
}
"""


def test_a_fusion_is_accepted() -> None:
    """One fusion, one computation."""
    check_accepted(
        _BODY + "ENTRY e {\n  p = f32[4] parameter(0)\n"
        "  ROOT a = f32[4] fusion(p), kind=kLoop, calls=f\n}\n"
    )


def test_a_shared_computation_is_refused() -> None:
    """The second fusion is the fault, the first one is in a note."""
    (fault,) = check_refused(
        _BODY + "ENTRY e {\n  p = f32[4] parameter(0)\n"
        "  a = f32[4] fusion(p), kind=kLoop, calls=f\n"
        "  ROOT b = f32[4] fusion(a), kind=kLoop, «calls=f»\n}\n",
        "E0308",
    )
    assert fault.notes[0].span.line == 8


def test_a_fused_entry_is_refused() -> None:
    """The entry computation is nobody's body."""
    check_refused(
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT r = f32[4] negate(p)\n}\n"
        "g {\n  p = f32[4] parameter(0)\n"
        "  ROOT a = f32[4] fusion(p), kind=kLoop, «calls=e»\n}\n",
        "E0308",
    )


def _fused(lines: str) -> str:
    return (
        f"HloModule m\nf {{\n  p = f32[4] parameter(0)\n{lines}}}\n"
        "ENTRY e {\n  p = f32[4] parameter(0)\n"
        "  ROOT a = f32[4] fusion(p), kind=kLoop, calls=f\n}\n"
    )


def test_dead_code_is_refused() -> None:
    """Everything but the root is used."""
    check_refused(_fused("  «d» = f32[4] sine(p)\n  ROOT r = f32[4] negate(p)\n"), "E0309")


def test_an_unused_parameter_is_refused() -> None:
    """A parameter is an instruction like others."""
    check_refused(
        "HloModule m\nf {\n  p = f32[4] parameter(0)\n  «%q» = f32[4] parameter(1)\n"
        "  ROOT r = f32[4] negate(p)\n}\nENTRY e {\n  p = f32[4] parameter(0)\n"
        "  ROOT a = f32[4] fusion(p, p), kind=kLoop, calls=f\n}\n",
        "E0309",
    )


def test_an_unused_effect_is_accepted() -> None:
    """XLA keeps what has a side effect."""
    check_accepted(
        _fused(
            '  d = f32[4] custom-call(p), custom_call_target="x", '
            "custom_call_has_side_effect=true\n  ROOT r = f32[4] negate(p)\n"
        )
    )


def test_a_root_with_users_is_refused() -> None:
    """The root comes last in the dataflow; its user is dead as well."""
    found = faults_in(_fused("  ROOT r = f32[4] negate(p)\n  u = f32[4] sine(r)\n"))
    assert [(fault.code, fault.span.text if fault.span else "") for fault in found] == [
        ("E0309", "r"),
        ("E0309", "u"),
    ]


def test_fewer_parameters_than_operands_are_accepted_and_more_are_not() -> None:
    """XLA asks for at most as many parameters as operands."""
    check_accepted(
        _BODY + "ENTRY e {\n  p = f32[4] parameter(0)\n"
        "  ROOT a = f32[4] fusion(p, p), kind=kLoop, calls=f\n}\n"
    )
    assert faults_in(_BODY + "ENTRY e {\n  ROOT a = f32[4] fusion(), kind=kLoop, calls=f\n}\n")
