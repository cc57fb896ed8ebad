"""The header's aliases and donors."""

import pytest

from tests.support.verifier_cases import check_accepted, check_refused


def _module(header: str) -> str:
    return (
        f"HloModule m, {header}\nENTRY e {{\n  p = f32[4] parameter(0)\n"
        "  q = (f32[4], s32[]) parameter(1)\n"
        "  a = f32[4] negate(p)\n  b = s32[] get-tuple-element(q), index=1\n"
        "  ROOT t = (f32[4], s32[]) tuple(a, b)\n}\n"
    )


@pytest.mark.parametrize(
    "header",
    [
        "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {1}, must-alias) }",
        "input_output_alias={ {0}: (1, {0}) }",
        "input_output_alias={ {1}: (0, {}, may-alias) }",
        "buffer_donor={ (0, {}), (1, {0}) }",
        "input_output_alias={ {0}: (0, {}) }, buffer_donor={ (1, {0}) }",
    ],
)
def test_right_aliases_are_accepted(header: str) -> None:
    """A may-alias of different shapes is a wish that cannot be met, and no fault."""
    check_accepted(_module(header))


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("«input_output_alias={ {0}: (2, {}, may-alias) }»", "E0327"),
        ("«input_output_alias={ {0}: (0, {0}, may-alias) }»", "E0327"),
        ("«input_output_alias={ {0}: (1, {2}, may-alias) }»", "E0327"),
        ("«input_output_alias={ {0}: (1, {}, may-alias) }»", "E0327"),
        ("«input_output_alias={ {}: (0, {}, may-alias) }»", "E0327"),
        ("«input_output_alias={ {0}: (0, {}), {1}: (0, {}) }»", "E0328"),
        ("«input_output_alias={ {1}: (0, {}, must-alias) }»", "E0329"),
        ("is_scheduled=true, «buffer_donor={ (2, {}) }»", "E0327"),
        ("«buffer_donor={ (0, {0}) }»", "E0327"),
        ("«buffer_donor={ (1, {}) }»", "E0327"),
        ("input_output_alias={ {0}: (0, {}) }, «buffer_donor={ (0, {}) }»", "E0328"),
    ],
)
def test_wrong_aliases_are_refused(header: str, code: str) -> None:
    """The header's attribute is the place."""
    check_refused(_module(header), code)


def test_a_must_alias_of_another_layout_is_refused() -> None:
    """What lives in one memory has one layout."""
    check_refused(
        "HloModule m, «input_output_alias={ {}: (0, {}, must-alias) }», "
        "entry_computation_layout={(f32[2,3]{0,1})->f32[2,3]{1,0}}\n"
        "ENTRY e {\n  p = f32[2,3] parameter(0)\n  ROOT n = f32[2,3] negate(p)\n}\n",
        "E0329",
    )
