"""Buffers: pinned, passed on with one writer, unpinned."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused

_ALIAS = "output_to_operand_aliasing={{}: (0, {})}"
_PIN = f'  b = b(f32[4]) custom-call(p), custom_call_target="Pin", {_ALIAS}\n'
_UNPIN = f'  ROOT u = f32[4] custom-call(w), custom_call_target="Unpin", {_ALIAS}\n'
_WRITE = f'  w = b(f32[4]) custom-call(b), custom_call_target="f", {_ALIAS}\n'


def _module(lines: str) -> str:
    return f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n{lines}}}\n"


def test_pin_write_unpin_is_accepted() -> None:
    """One writer."""
    check_accepted(_module(_PIN + _WRITE + _UNPIN))


@pytest.mark.parametrize(
    "lines",
    [
        _PIN.replace("  b =", "  «b» =") + _WRITE + _WRITE.replace("w =", "w2 =") + _UNPIN,
        _PIN + '  «w» = b(f32[4]) custom-call(b), custom_call_target="f"\n' + _UNPIN,
        _PIN + _WRITE.replace("w =", "«w» =").replace("(b)", "(p)") + _UNPIN,
        _PIN.replace("(f32[4])", "(f32[5])").replace("b =", "«b» =").replace(_ALIAS, "")
        .replace(", \n", "\n") + "  ROOT r = f32[4] negate(p)\n",
    ],
)  # fmt: skip
def test_wrong_buffers_are_refused(lines: str) -> None:
    """Two writers, a buffer that is not given back, a Pin of another shape."""
    check_refused(_module(lines), "E0335")


def test_the_entry_takes_no_buffers() -> None:
    """A parameter of the entry is a value."""
    check_refused(
        "HloModule m\nENTRY e {\n  «p» = b(f32[4]) parameter(0)\n  ROOT r = s32[] constant(1)\n}\n",
        "E0335",
    )
