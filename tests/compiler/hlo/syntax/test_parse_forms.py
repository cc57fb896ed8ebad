"""Forms of the language: what each spelling becomes in the module."""

import pytest

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.reading.statements import StatementReader
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attribute_kinds import INSTRUCTION_KINDS
from hloipu_compiler.ir.attributes import (
    Alias,
    ConvolutionLabels,
    Donor,
    PaddingDimension,
    SliceRange,
    Window,
)
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_runtime.kernels.windows_geometry import WindowDimension


def _module(body: str) -> Module:
    return parse(f"HloModule m\nENTRY e {{\n{body}\n}}\n")


def _root(body: str) -> Instruction:
    entry = _module(body).entry
    return entry.instructions[entry.root]


@pytest.mark.parametrize(
    "text",
    [
        "f32[]", "pred[3]{0}", "bf16[2,3]{1,0}", "f32[<=4,?]", "token[]", "opaque[]", "()",
        "(f32[2], (s32[], ()))", "b(f32[4])", "(b(f32[4]), u32[])", "f32[8,128]{1,0:T(8,128)S(5)}",
        "u4[4]{0:E(4)}", "f8e4m3b11fnuz[1]", "c128[2]",
    ],
)  # fmt: skip
def test_shapes_print_as_they_were_read(text: str) -> None:
    """Reading and printing a printed shape changes nothing, blanks and comments mean nothing."""
    assert str(parse_shape(text)) == text
    spread = text.replace(",", " , /*c*/").replace("[", " [ ").replace("]", " ]")
    if ":" not in text:
        assert parse_shape(spread) == parse_shape(text)


@pytest.mark.parametrize(
    "text", ["F32[]", "f32", "f8[]", "token[2]", "f32[2", "f32[-1]", "f32[,]", "(f32[],)",
             "f32[2]{}", "f32[2]{1,0}", "b(s32[], f32[])"],
)  # fmt: skip
def test_wrong_shapes(text: str) -> None:
    """What XLA takes for no shape is none."""
    with pytest.raises(TextFault):
        parse_shape(text)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("index=1", 1), ("index=-1", -1), ("dimensions={}", ()), ("dimensions={ 0 , 1 }", (0, 1)),
        ("dimensions={0,/*c*/1}", (0, 1)), ("is_stable=true", True), ("epsilon=1e-05", 1e-5),
        ("epsilon=1", 1.0), ("slice={[0:4], [1:8:2]}", (SliceRange(0, 4), SliceRange(1, 8, 2))),
        ("padding=0_1x-2_2_1", (PaddingDimension(0, 1), PaddingDimension(-2, 2, 1))),
        ("dim_labels=b01f_01io->b01f", ConvolutionLabels("b01f", "01io", "b01f")),
        ("dim_labels=bf_io->bf", ConvolutionLabels("bf", "io", "bf")),
        ("window={size=3x1 stride=2x1 pad=1_0x0_-1 rhs_reversal=1x0}",
         Window((WindowDimension(3, 2, 1, 0, reversal=True), WindowDimension(1, 1, 0, -1)))),
        ("window={ size=3 /*c*/ lhs_dilate=2 }", Window((WindowDimension(3, base_dilation=2),))),
        ("operand_precision={HIGHEST, default}", ("highest", "default")),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
        ("custom_call_target=\"a\\\"b\\n\"", 'a"b\n'),
        ("output_to_operand_aliasing={{0}: (1, {})}", (Alias((0,), 1, ()),)),
        ("of_tomorrow={x}", "{x}"),
    ],
)  # fmt: skip
def test_attribute_values(attribute: str, value: object) -> None:
    """Each kind of value is read in printed and in spread form."""
    key, _, text = attribute.partition("=")
    if key == "of_tomorrow":
        root = _root(f"p = f32[4] parameter(0)\nROOT n = f32[4] negate(p), {attribute}")
        assert root.attributes[key] == value
        return
    assert StatementReader(Limits()).value(key, text, INSTRUCTION_KINDS[key]) == value


def test_header() -> None:
    """Header attributes are typed; unknown ones stay text."""
    module = parse(
        "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }, "
        "buffer_donor={ (1, {0}) },\n replica_count=2, of_tomorrow={a b}\n"
        "ENTRY e { p = f32[] parameter(0) }"
    )
    assert dict(module.attributes) == {
        "is_scheduled": True,
        "input_output_alias": (Alias((), 0, (), "must-alias"),),
        "buffer_donor": (Donor(1, (0,)),),
        "replica_count": 2,
        "of_tomorrow": "{a b}",
    }


def test_entry_and_root_defaults() -> None:
    """Without marks the last computation is the entry and the last instruction the root."""
    module = parse(
        "HloModule m\nf { a = f32[] parameter(0) }\ng { b = f32[] parameter(0) c = f32[] abs(b) }"
    )
    assert module.entry.name == "g"
    assert module.entry.root == 1


def test_root_with_dead_code_after_it() -> None:
    """ROOT may stand on any line."""
    entry = _module("ROOT p = f32[] parameter(0)\nq = f32[] abs(p)").entry
    assert (entry.root, len(entry.instructions)) == (0, 2)


def test_two_statements_on_a_line() -> None:
    """An attribute's value does not swallow the next statement."""
    entry = _module(
        "p = f32[4,2] parameter(0) t = f32[2,4] transpose(p), dimensions={1,0} ROOT r = f32[4,2] "
        "transpose(t), dimensions={1,0}"
    ).entry
    assert [x.name for x in entry.instructions] == ["p", "t", "r"]


def test_attributes_that_go_on_in_the_next_line() -> None:
    """A line end ends nothing."""
    root = _root("p = f32[4] parameter(0)\nROOT r = f32[4] reverse(p)\n  , dimensions={0}")
    assert root.attributes["dimensions"] == (0,)


def test_single_instruction() -> None:
    """Unknown operands of a lone instruction become parameters."""
    module = parse("ROOT s = f32[4] add(f32[4] a, f32[4] b)")
    assert [x.opcode for x in module.entry.instructions] == ["parameter", "parameter", "add"]
    nameless = parse("f32[4] negate(f32[4] a)")
    assert nameless.entry.instructions[-1].opcode == "negate"


def test_headerless() -> None:
    """Computations can stand without a module line."""
    assert parse("e {\n  a = u4[2] parameter(0)\n}").entry.name == "e"
    with pytest.raises(ParseError):
        parse("e (a: u4[2]) -> u4[2] {\n  a = u4[2] parameter(0)\n}")


def test_nested_operands() -> None:
    """An instruction in an operand's place comes before its user, under a name of its own."""
    entry = _module("p = f32[] parameter(0)\nROOT r = f32[] add(abs(p), f32[] constant(2))").entry
    assert [x.opcode for x in entry.instructions] == ["parameter", "abs", "constant", "add"]
    assert entry.instructions[3].operands == (1, 2)
    assert len(set(entry.position)) == 4


def test_inline_computation() -> None:
    """A computation in an attribute is added under a name of its own."""
    module = _module(
        "p = f32[4] parameter(0)\nz = f32[] constant(0)\nROOT r = f32[] reduce(p, z), "
        "dimensions={0}, to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) "
        "ROOT s = f32[] add(a, b) }"
    )
    root = module.entry.instructions[module.entry.root]
    (callee,) = module.called(root)
    assert callee.instructions[callee.root].opcode == "add"


def test_tuple_element_shorthand() -> None:
    """`name#1` is element 1."""
    entry = _module("t = (f32[], s32[]) parameter(0)\nROOT n = s32[] negate(t#1)").entry
    assert entry.instructions[1].opcode == "get-tuple-element"
    assert entry.instructions[1].attributes["index"] == 1


def test_async_sugar() -> None:
    """A start wraps its operation in a computation; updates and dones follow it."""
    module = _module(
        "p = f32[4] parameter(0)\n"
        's = ((f32[4]), f32[4], s32[]) custom-call-start(p), custom_call_target="x", '
        'async_execution_thread="host"\n'
        "u = ((f32[4]), f32[4], s32[]) custom-call-update(s)\n"
        "ROOT d = f32[4] custom-call-done(u)"
    )
    entry = module.entry
    assert [x.opcode for x in entry.instructions[1:]] == [
        "async-start",
        "async-update",
        "async-done",
    ]
    (wrapped,) = module.called(entry["s"])
    assert wrapped.execution_thread == "host"
    inner = wrapped.instructions[wrapped.root]
    assert (inner.opcode, dict(inner.attributes)) == ("custom-call", {"custom_call_target": "x"})
    with pytest.raises(ParseError, match="E0145"):
        _module("p = f32[4] parameter(0)\nROOT d = f32[4] custom-call-done(p)")


def test_forward_reference_but_no_recursion() -> None:
    """XLA prints callers before callees at times; a cycle is refused."""
    text = (
        "HloModule m\nENTRY e { p = f32[] parameter(0) ROOT r = f32[] call(p), to_apply=f }\n"
        "f { q = f32[] parameter(0) ROOT s = f32[] %s(q)%s }"
    )
    assert parse(text % ("abs", "")).entry.name == "e"
    with pytest.raises(ParseError, match="E0170"):
        parse(text % ("call", ", to_apply=e"))


def test_metadata_and_backend_config_stay_text() -> None:
    """They are kept beside the attributes as they stood."""
    root = _root(
        "ROOT p = f32[] parameter(0), metadata={op_name=\"p[\\'L\\']\"}, sharding={replicated}, "
        'backend_config={"a":{"b":"}"}}'
    )
    assert root.metadata == "{op_name=\"p[\\'L\\']\"}"
    assert root.backend_config == '{"a":{"b":"}"}}'
    assert dict(root.attributes) == {"sharding": "{replicated}"}


def test_shapes_are_inferred() -> None:
    """A statement may leave out a shape that follows from its operands."""
    assert (
        str(_root("p = f32[4] parameter(0)\nROOT c = compare(p, p), direction=LT").shape)
        == "pred[4]"
    )
