"""Programs as text: hand-written ones come back letter for letter, wrong ones with their place."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.mapping import Mapping, Span, Tiles
from hloipu_runtime.program.program import Program, Role, Value, Variable
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import (
    ComputeSet,
    If,
    Operand,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Switch,
    Transfer,
)
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.run.host import Arrays
from tests.support.program_reader.parser import parse_program
from tests.support.program_reader.tokens import ProgramTextError
from tests.support.program_texts import CONTROL, DOUBLE, MOVE, TEXTS, small_programs
from tests.support.same_programs import assert_same

DOCUMENT = Path(__file__).parents[4] / "docs" / "program-text.md"


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_comes_back_letter_for_letter(name: str) -> None:
    program = parse_program(TEXTS[name])
    assert print_program(program, constants=True) == TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_the_texts_say_what_can_be_proved(name: str) -> None:
    assert faults_of(parse_program(TEXTS[name]), tiles_per_ipu=4) == []


def test_every_field_of_a_program_is_in_some_text() -> None:
    programs = small_programs().values()
    shown = {
        field.name
        for field in fields(Program)
        if len({repr(getattr(program, field.name)) for program in programs}) > 1
    }
    assert shown | {"machine"} == {field.name for field in fields(Program)}


def test_the_page_shows_the_text() -> None:
    shown = "".join(f"    {line}\n" for line in DOUBLE.splitlines())
    assert shown in DOCUMENT.read_text(encoding="utf-8")


def test_what_the_vector_text_means() -> None:
    program = parse_program(DOUBLE)
    tiles = Tiles((2,), (1,), 0)
    mapping = Mapping(tiles, (Span(0, 2, 0, 2),))
    assert program.variables[0] == Variable("x", "f32", (4,), mapping, Role.PARAMETER, 0, "p")
    assert program.values[1] == Value("f32", (4,), "sum")
    assert (program.parameters[0].alias, program.results[0].alias) == (-1, 0)
    compute = program.body.steps[2]
    assert isinstance(compute, ComputeSet)
    (group,) = compute.groups
    assert group.tiles == tiles
    assert group.inputs == (Operand(0, (Span(0, 2, 0, 2),)),)
    assert (group.reads, group.writes, group.name) == ((0,), (1,), "sum")
    assert isinstance(group.codelet, Elementwise)
    assert group.codelet.expression.nodes[0].arguments == (0, 0)


def test_what_lines_leave_out_is_read_off_the_destination() -> None:
    halo = parse_program(MOVE).body.steps[3]
    (transfer,) = halo.transfers  # type: ignore[union-attr]
    assert transfer == Transfer(
        source=1,
        destination=2,
        tiles=Tiles((2,), (1,), 2),
        receivers=((0, 2),),
        spans=(Span(-1, 0, 0, 2), Span(0, 2, -1, 3)),
        box=((0, 2), (0, 3)),
        shift=(0, 0),
        view=(2, 3),
        value=1,
    )


def test_what_the_loops_and_choices_mean() -> None:
    steps = parse_program(CONTROL).body.steps
    kinds = [type(step) for step in steps[3:8]]
    assert kinds == [RepeatWhile, Repeat, Parallel, If, Switch]
    loop, repeat = steps[3:5]
    assert isinstance(loop, RepeatWhile)
    assert isinstance(repeat, Repeat)
    assert (loop.predicate, loop.predicate_value) == (2, 3)
    assert loop.carried == ((0, 0, 2, 4, 5),)
    assert (repeat.count, repeat.name, repeat.carried) == (4, "again", ((0, 5, 6, 7, 8),))
    choice = steps[6]
    assert isinstance(choice, If)
    assert choice.merged == ((0, (10, 9), 11),)
    assert choice.otherwise == Sequence()


@pytest.mark.parametrize(("start", "yes", "result"), [(0, True, 9), (0, False, 8), (7, False, 12)])
def test_the_program_of_loops_runs_as_its_text_says(start: int, yes: bool, result: int) -> None:
    # Up to 3, four more, one for the call, one for the branch; the index is never 0.
    host = Arrays({"parameter.0": np.array(start, np.int32), "parameter.1": np.array(yes)})
    ExactEngine(parse_program(CONTROL), poison=True).run(host)
    assert host.outputs["result.0"] == result


def test_the_program_of_moves_runs_as_its_text_says() -> None:
    host = Arrays({})
    ExactEngine(parse_program(MOVE), poison=True).run(host)
    row = [1.0, -np.inf, np.nan]
    np.testing.assert_array_equal(host.outputs["result.0"], np.array([row, row], np.float32))


def test_large_constants_are_left_out_and_can_be_given() -> None:
    program = parse_program(MOVE)
    text = print_program(program)
    assert 'v3 = %2 elided "' in text
    array = program.constants[3][1]
    again = parse_program(text, arrays={3: array})
    assert print_program(again, constants=True) == MOVE
    with pytest.raises(ProgramTextError, match="values were left out") as caught:
        parse_program(text)
    assert caught.value.code == "E4021"
    with pytest.raises(ProgramTextError, match="not what was left out"):
        parse_program(text, arrays={3: array + 1})


def test_a_text_that_prints_alike_is_one_program() -> None:
    for name, program in small_programs().items():
        assert_same(parse_program(print_program(program, constants=True)), program)
        assert print_program(program, constants=True) == TEXTS[name]


# A wrong text, what stands at the place that is shown (its last occurrence), and what is said.
WRONG = [
    (DOUBLE.replace("sync 1", "sync one", 1), "one", "an integer"),
    (DOUBLE.replace("f32[4] alias 0", "f33[4]"), "f33", "no element type 'f33'"),
    (DOUBLE.replace("-> v0", "-> v7"), "v7", "there is no variable v7"),
    (DOUBLE.replace("<- v1 = %1", "<- v1 = %12"), "%12", "there is no value %12"),
    (DOUBLE.replace("  v1 ", "  v2 ", 1), "v2", "'v1', the next"),
    (DOUBLE.replace("  %1:", "  %0:"), '%0: f32[4] "sum', "'%1', the next"),
    (DOUBLE.replace("elementwise(", "elementwize("), "elementwize", "no codelet 'elementwize'"),
    (DOUBLE.replace(", rank=1", ""), "elementwise", "parameter rank is missing"),
    (DOUBLE.replace("rank=1", "rank=true"), "true", "an integer"),
    (DOUBLE.replace("1 = f32 add", "2 = f32 add"), "2 = f32 add", "the next node is 1"),
    (DOUBLE.replace("(a0*2:2) from", "(*, *) from"), ') from "p"', "fewer dimensions"),
    (DOUBLE.replace("(a0*2:2) from", "() from"), '@0[2 x 1] () from "p"', "0 parts for 1 dim"),
    (DOUBLE.replace("a0*2:2) from", "b0*2:2) from", 1), "b0", "grid axes are a0"),
    (DOUBLE[:-2], "", "a step"),
    (DOUBLE + "}", "}\n"[:1], "the end"),
    (DOUBLE.replace("4]", "99999999999999999999999]", 1), "9" * 23, "more than 64 bits"),
    (DOUBLE.replace('"x"', '"\\q"'), '"\\q"', "not a text as JSON has it"),
    (DOUBLE.replace("body", "body \x07"), "\x07", "no word"),
    (MOVE.replace("-inf", "-infinite"), "values", "'-infinite' is not a value of type bf16"),
    (MOVE.replace("-inf ", ""), "values", "2 elements, not 3"),
    (MOVE.replace('bytes "0', 'bytes "'), "bytes", "not the bytes"),
    (MOVE.replace("  v3 = %2 bytes", "  v0 = %2 bytes"), "v0 = %2 bytes", "a second constant"),
    (CONTROL.replace("branch {\n    }", ""), "{\n    branch {\n      compute {\n        (v0 = %10",
     "1 branches; an if has two"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word", "message"), WRONG)
def test_wrong_words_are_shown_with_their_place(text: str, word: str, message: str) -> None:
    at = text.rindex(word)
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)

    with pytest.raises(ProgramTextError) as caught:
        parse_program(text, name="p.txt")

    error = caught.value
    assert message in error.message
    assert str(error.span) == f"p.txt:{line}:{column}"
    assert (error.code, error.exit_code) == ("E4020", 9)
    shown, caret = error.span.caret_lines().split("\n")
    assert shown[caret.index("^") :].startswith(word.partition("\n")[0].replace("\x07", " "))


def test_hostile_nesting_is_refused_in_time() -> None:
    head, body = DOUBLE.split("body {", 1)
    for opened in ("sequence { " * 10_000, "parallel { branch { " * 10_000):
        with pytest.raises(ProgramTextError, match="deep"):
            parse_program(f"{head}body {{ {opened}")
    with pytest.raises(ProgramTextError, match="deep"):
        parse_program(f"{head}body {{{body}".replace("labels=[[0]]", f"labels={'[' * 10_000}"))


def test_reading_is_linear() -> None:
    step = "  sync 1\n"
    program = parse_program(DOUBLE.replace(step, step * 50_000, 1))
    assert isinstance(program, Program)
    assert len(program.body.steps) == 50_004
