import pytest

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import (
    CANONICAL,
    FULL,
    SHORT,
    Form,
    Layouts,
    Printer,
    PrintOptions,
    print_computation,
    print_module,
)
from hloipu_compiler.ir.graph import Computation, Module
from tests.support.cases import each
from tests.support.texts_valid import valid_texts


def print_instruction(computation: Computation, position: int, options: PrintOptions = FULL) -> str:
    printer = Printer(options)
    instruction = computation.instructions[position]
    names = {i: printer.name(computation.instructions[i].name) for i in instruction.operands}
    return printer.instruction(instruction, names, computation)


SMALL = """
HloModule small, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }, replica_count=1

FileNames
1 "/a.py"

FunctionNames
1 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }

ENTRY e {
  x = f32[4,2]{1,0:T(8,128)} parameter(0), sharding={replicated}
  zero = f32[] constant(0)
  ROOT out = f32[4]{0} reduce(x, zero), to_apply=add, dimensions={1}, metadata={op_name="s"},
    backend_config={"k":1}
}
"""

FULL_TEXT = """\
HloModule small, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }, replica_count=1

FileNames
1 "/a.py"

FunctionNames
1 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = f32[] add(%a, %b)
}

ENTRY %e (x: f32[4,2]) -> f32[4] {
  %x = f32[4,2]{1,0:T(8,128)} parameter(0), sharding={replicated}
  %zero = f32[] constant(0)
  ROOT %out = f32[4]{0} reduce(%x, %zero), to_apply=%add, dimensions={1}, \
metadata={op_name="s"}, backend_config={"k":1}
}
"""

CANONICAL_TEXT = """\
HloModule m, input_output_alias={ {}: (0, {}, must-alias) }, is_scheduled=true

c0 {
  p0 = f32[] parameter(0)
  p1 = f32[] parameter(1)
  ROOT v2 = f32[] add(p0, p1)
}

ENTRY c1 {
  p3 = f32[4,2]{1,0:T(8,128)} parameter(0), sharding={replicated}
  v4 = f32[] constant(0)
  ROOT v5 = f32[4] reduce(p3, v4), dimensions={1}, to_apply=c0
}
"""


def contents(module: Module) -> object:
    """Return all that a module says, places in the text apart."""
    return (
        module.name,
        module.entry.name,
        module.attributes,
        module.stack_tables.strip(),
        [of_computation(c) for c in module.computations],
    )


def of_computation(computation: Computation) -> object:
    instructions = [x._replace(start=-1, end=-1) for x in computation.instructions]
    return computation.name, computation.root, computation.execution_thread, instructions


def test_full_form() -> None:
    assert print_module(parse(SMALL)) == FULL_TEXT


def test_canonical_form() -> None:
    assert print_module(parse(SMALL), CANONICAL) == CANONICAL_TEXT


def test_short_form_drops_metadata_signatures_and_percent() -> None:
    text = print_module(parse(SMALL), SHORT)
    assert "%" not in text
    assert "metadata" not in text
    assert "FileNames" not in text
    assert (
        'ROOT out = f32[4]{0} reduce(x, zero), to_apply=add, dimensions={1}, backend_config={"k":1}'
        in text
    )


@each("text", valid_texts())
def test_round_trips(text: str) -> None:
    try:
        module = parse(text)
    except ParseError:  # that all can be read is for the parser's own tests
        return
    printed = print_module(module)
    assert contents(parse(printed)) == contents(module)
    short = print_module(module, SHORT)
    assert print_module(parse(short), SHORT) == short
    canonical = print_module(module, CANONICAL)
    assert print_module(parse(canonical), CANONICAL) == canonical
    if "async_wrapped" not in printed:  # hidden computations move to where sugar puts them
        assert print_module(parse(short), CANONICAL) == print_module(
            parse(print_module(module, PrintOptions(metadata=False))), CANONICAL
        )


def test_names_that_lex_as_words_keep_their_percent() -> None:
    module = parse("HloModule m\nENTRY e { ROOT %unknown = f32[] constant(1) }")
    assert "ROOT %unknown = f32[] constant(1)" in print_module(module, SHORT)


def test_a_comment_in_a_literal_does_not_swallow_the_parenthesis() -> None:
    module = parse("HloModule m\nENTRY e { ROOT c = f32[] constant(1 // one\n) }")
    assert contents(parse(print_module(module))) == contents(module)


def test_big_constants_are_elided_only_on_request() -> None:
    module = parse("HloModule m\nENTRY e { ROOT c = f32[3]{0} constant({1, 2, 3}) }")
    assert "constant({1, 2, 3})" in print_module(module)
    assert "constant({1, 2, 3})" in print_module(module, PrintOptions(largest_constant=3))
    assert "constant({...})" in print_module(module, PrintOptions(largest_constant=2))


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        (Layouts.VERBATIM, "(f32[2,2]{1,0}, f32[2,2]{0,1}, f32[2,2])"),
        (Layouts.EXPLICIT, "(f32[2,2]{1,0}, f32[2,2]{0,1}, f32[2,2]{1,0})"),
        (Layouts.MINIMAL, "(f32[2,2], f32[2,2]{0,1}, f32[2,2])"),
        (Layouts.NONE, "(f32[2,2], f32[2,2], f32[2,2])"),
    ],
)
def test_layouts(layouts: Layouts, expected: str) -> None:
    shape = "(f32[2,2]{1,0}, f32[2,2]{0,1}, f32[2,2])"
    module = parse(f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0) }}")
    line = print_instruction(module.entry, 0, PrintOptions(layouts=layouts))
    assert line == f"%p = {expected} parameter(0)"


def test_index_comments_every_fifth() -> None:
    operands = ", ".join(["p"] * 7)
    shape = f"({', '.join(['s32[]'] * 7)})"
    module = parse(
        f"HloModule m\nENTRY e {{ p = s32[] parameter(0) ROOT t = {shape} tuple({operands}) }}"
    )
    line = print_instruction(module.entry, 1)
    assert "s32[], /*index=5*/s32[]" in line
    assert "tuple(%p, %p, %p, %p, %p, /*index=5*/%p, %p)" in line
    assert "/*" not in print_instruction(module.entry, 1, SHORT)


def test_operand_shapes_as_before_2025() -> None:
    module = parse(SMALL)
    line = print_instruction(module.entry, 2, PrintOptions(operand_shapes=True))
    assert "reduce(f32[4,2]{1,0:T(8,128)} %x, f32[] %zero)" in line


ASYNC = """
HloModule m
ENTRY e {
  p = f32[8] parameter(0)
  c = ((f32[8]), f32[8], s32[]) custom-call-start(p), custom_call_target="foo",
    async_execution_thread="t"
  u = ((f32[8]), f32[8], s32[]) custom-call-update(c)
  ROOT d = f32[8] custom-call-done(u)
}
"""


def test_async_sugar_is_written_and_read_back() -> None:
    module = parse(ASYNC)
    assert len(module.computations) == 2
    full, short = print_module(module), print_module(module, SHORT)
    assert "async-start(%p), calls=%async_wrapped" in full
    assert "custom-call-start(p), custom_call_target=" in short
    assert "custom-call-done(u)" in short
    assert "async" not in short.replace("async_execution_thread", "")
    assert contents(parse(short)) == contents(parse(full)) == contents(module)


def test_async_around_permuted_operands_is_not_sugared() -> None:
    text = """
HloModule m
w { x = f32[8] parameter(0) y = f32[8] parameter(1) ROOT z = f32[8] subtract(y, x) }
ENTRY e {
  p = f32[8] parameter(0)
  s = ((f32[8], f32[8]), f32[8], s32[]) async-start(p, p), calls=w
  ROOT d = f32[8] async-done(s)
}"""
    assert "async-start(p, p), calls=w" in print_module(parse(text), SHORT)


def test_one_computation() -> None:
    module = parse(SMALL)
    expected = FULL_TEXT[FULL_TEXT.index("%add") : FULL_TEXT.index("\n\nENTRY")]
    assert print_computation(module.computation["add"]) == expected
    assert print_computation(module.entry, is_entry=True).startswith("ENTRY %e ")


def test_forms_by_name() -> None:
    assert Form("short") is SHORT.form
    assert FULL.form is Form.FULL
