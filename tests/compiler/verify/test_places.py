"""Where the parts of a statement stand."""

import pytest

from hloipu_compiler.verify.places import statement_parts


def _shown(text: str) -> tuple[str, str, str, list[str], dict[str, str]]:
    parts = statement_parts(text)
    cut = [text[slice(*x)] if x else "" for x in (parts.name, parts.shape, parts.opcode)]
    operands = [text[slice(*x)] for x in parts.operands]
    attributes = {key: text[slice(*x)] for key, x in parts.attributes.items()}
    return cut[0], cut[1], cut[2], operands, attributes


@pytest.mark.parametrize(
    ("text", "shape", "opcode", "operands", "attributes"),
    [
        ("ROOT %r = f32[2]{0} add(%a, b)", "f32[2]{0}", "add", ["%a", "b"], {}),
        (
            "r = (f32[2], /*index=1*/s32[]) tuple(f32[2]{0} a, s32[] %b)",
            "(f32[2], /*index=1*/s32[])",
            "tuple",
            ["f32[2]{0} a", "s32[] %b"],
            {},
        ),
        (
            'r = b(f32[4]) custom-call(a), custom_call_target="x(,)=", k={a="}"}',
            "b(f32[4])",
            "custom-call",
            ["a"],
            {"custom_call_target": 'custom_call_target="x(,)="', "k": 'k={a="}"}'},
        ),
        (
            "r = f32[2,2]{1,0:T(8,128)S(5)} dot(a, // why, not\n b), x={0,1}, y={{0},{1}}",
            "f32[2,2]{1,0:T(8,128)S(5)}",
            "dot",
            ["a", "b"],
            {"x": "x={0,1}", "y": "y={{0},{1}}"},
        ),
        ("r = add(a, add(b, c))", "", "add", ["a", "add(b, c)"], {}),
        ("r = pred[] after-all()", "pred[]", "after-all", [], {}),
        (
            "r = f32[2] constant({1, 2}), replica_groups=[2,2]<=[4]T(1,0), z=1",
            "f32[2]",
            "constant",
            ["{1, 2}"],
            {"replica_groups": "replica_groups=[2,2]<=[4]T(1,0)", "z": "z=1"},
        ),
    ],
)
def test_parts(
    text: str, shape: str, opcode: str, operands: list[str], attributes: dict[str, str]
) -> None:
    """Brackets, quotes and comments do not mislead it."""
    name = "%r" if "%r" in text else "r"
    assert _shown(text) == (name, shape, opcode, operands, attributes)


@pytest.mark.parametrize("text", ["", "x", "((((", "))))", "r = ", "a = b = c(", '"', "/*", "= ("])
def test_any_text_is_survived(text: str) -> None:
    """What is no statement has no parts; nothing is raised."""
    statement_parts(text)
