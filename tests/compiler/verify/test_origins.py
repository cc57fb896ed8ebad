"""Origins: one entry for each leaf."""

import pytest

from hloipu_compiler.verify.sharding import origin_indices
from tests.support.verifier_cases import check_accepted, check_refused


def _module(origin: str) -> str:
    return (
        "HloModule m\nENTRY e {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        f"  ROOT t = (f32[], f32[]) tuple(a, b), {origin}\n}}\n"
    )


def test_origins_are_nested_as_the_shape() -> None:
    """A pair needs two entries."""
    check_accepted(_module('origin={({"a"}, {"b" {0}})}'))
    check_accepted(_module("origin={[synthetic_call]}"))
    check_refused(_module('«origin={{"a"}}»'), "E0334")
    check_refused(_module('«origin={({"a"})}»'), "E0334")


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ('{{"a"}}', {()}),
        ('{({"a"}, {"b" {0,1}})}', {(0,), (1,)}),
        ('{(({"a"}, {}), {"x,({"})}', {(0, 0), (0, 1), (1,)}),
        ("{()}", set()),
    ],
)
def test_indices(text: str, indices: set[tuple[int, ...]]) -> None:
    """Only the nesting is read."""
    assert origin_indices(text) == indices
