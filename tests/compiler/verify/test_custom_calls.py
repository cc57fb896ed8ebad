"""Custom calls with rules of their own."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused


def _module(statement: str) -> str:
    return f"HloModule m\nENTRY e {{\n  p = u64[] parameter(0)\n  ROOT s = {statement}\n}}\n"


def test_get_rng_seed() -> None:
    """No operands, u64[]."""
    check_accepted(_module('u64[] custom-call(), custom_call_target="GetRngSeed"'))
    check_accepted(_module('u32[] custom-call(p), custom_call_target="Other"'))


@pytest.mark.parametrize(
    "statement",
    [
        '«u32[]» custom-call(), custom_call_target="GetRngSeed"',
        '«u64[1]» custom-call(), custom_call_target="GetRngSeed"',
        'u64[] custom-call(«p»), custom_call_target="GetRngSeed"',
    ],
)
def test_a_wrong_get_rng_seed_is_refused(statement: str) -> None:
    """Another type, rank, or an operand."""
    check_refused(_module(statement), "E0336")
