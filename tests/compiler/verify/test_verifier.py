"""The verifier's face: the error, the order of faults, the bound on work."""

from typing import Any

import pytest

from hloipu_compiler.errors import VerifyError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.inference.rules import infer_shape
from hloipu_compiler.verify import verifier
from hloipu_compiler.verify.verifier import faults_of, verify

_WRONG = """HloModule m, buffer_donor={ (7, {}) }
f {
  p = f32[4] parameter(0)
  ROOT r = f32[5] negate(p)
}
ENTRY e {
  p = f32[4] parameter(0)
  ROOT c = f32[4] call(p), to_apply=f
}
"""


def test_every_fault_is_raised_in_text_order() -> None:
    """Header, callee, caller."""
    with pytest.raises(VerifyError) as raised:
        verify(parse(_WRONG))
    assert [fault.code for fault in raised.value.faults] == ["E0327", "E0301", "E0301"]
    assert raised.value.exit_code == 3
    assert "3 faults found" in str(raised.value)


def test_a_right_module_raises_nothing() -> None:
    """The smallest module."""
    verify(parse("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }"))


def test_the_number_of_faults_can_be_bounded() -> None:
    """The first ones found are kept."""
    assert len(faults_of(parse(_WRONG), most=1)) == 1


def test_like_instructions_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand instructions of two kinds cost two shape inferences and the parameter's."""
    seen: list[str] = []

    def counted(opcode: str, *arguments: Any) -> Any:
        seen.append(opcode)
        return infer_shape(opcode, *arguments)

    monkeypatch.setattr(verifier, "infer_shape", counted)
    lines = "\n".join(
        f"  a{i} = f32[4] add({before}, p)\n  b{i} = f32[4] negate(a{i})"
        for i in range(5000)
        for before in [f"b{i - 1}" if i else "p"]
    )
    module = parse(f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n{lines}\n}}\n")
    assert not faults_of(module)
    assert sorted(seen) == ["add", "negate", "parameter"]


def test_a_misspelt_attribute_is_named_where_its_absence_hurts() -> None:
    text = (
        "ENTRY e {\n  x = f32[2,3] parameter(0)\n  y = f32[3,4] parameter(1)\n  ROOT d = f32[2,4] "
        "dot(x, y), lhs_contracting_dim={1}, rhs_contracting_dims={0}\n}\n"
    )
    (fault,) = faults_of(parse(text))
    assert "did you mean lhs_contracting_dims=?" in fault.hint
