"""The fast path and the grammar give one module for every text, and one message for every fault."""

import random
from pathlib import Path

import pytest

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo import parse as parsing
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.reading.build import Unprinted
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.source import Source
from hloipu_runtime.errors import HloipuError
from tests.support.texts_invalid import UNPARSABLE
from tests.support.texts_valid import valid_texts


def _outcome(text: str, *, fast: bool) -> Module | str:
    try:
        return parse(text, fast=fast)
    except HloipuError as error:
        return str(error)


def test_valid_texts() -> None:
    """Modules are equal, offsets included."""
    for text in valid_texts():
        assert _outcome(text, fast=True) == _outcome(text, fast=False), text


def test_refused_texts() -> None:
    """Messages are equal, places included."""
    for text in UNPARSABLE:
        assert _outcome(text, fast=True) == _outcome(text, fast=False), text


def test_real_dump(zoo_file: Path) -> None:
    """Real dumps are read alike, and wholly on the fast path where a printer wrote them."""
    text = zoo_file.read_text(encoding="utf-8")
    assert parse(text, fast=True) == parse(text, fast=False)


PRINTED = """HloModule m, entry_computation_layout={(f32[4]{0}, s32[])->(f32[4]{0}, s32[])}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b), metadata={op_name="x/y" source_file="f.py" source_line=3}
}

ENTRY %main (p: f32[4], i: s32[]) -> (f32[4], s32[]) {
  %p = f32[4]{0} parameter(0), sharding={replicated}
  %i = s32[] parameter(1)
  %c = f32[4]{0} constant({1, 2, 3, 4})
  %z = f32[] constant(0), backend_config={"a":{"b":"}"}}
  %r = f32[] reduce(f32[4]{0} %p, f32[] %z), dimensions={0}, to_apply=%sum
  %w = f32[4]{0} broadcast(%r), dimensions={}, frontend_attributes={k="v"}
  %t5 = SIX tuple(%p, %c, %w, %p, %c, /*index=5*/%i)
  %g = f32[4]{0} get-tuple-element(SIX %t5), index=2
  ROOT %t = (f32[4]{0}, s32[]) tuple(%g, %i)
}
""".replace("SIX", "(" + "f32[4]{0}, " * 5 + "/*index=5*/s32[])")


def test_printed_text_needs_no_second_reading() -> None:
    """The fast path reads all that printers write; else it would be slow without being wrong."""
    module = parsing._parse(Source(PRINTED), Limits(), fast=True)
    assert module == parse(PRINTED, fast=False)
    assert module.instruction_count == 12


def test_fault_in_printed_text_is_placed_by_the_grammar() -> None:
    """A fault found on the fast path sends the text through the grammar."""
    text = PRINTED.replace("reduce(f32[4]{0} %p", "reduce(f32[5]{0} %p")
    with pytest.raises(Unprinted):
        parsing._parse(Source(text), Limits(), fast=True)
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.code == "E0134"
    assert caught.value.span is not None
    assert caught.value.span.text == "f32[5]{0}"


def _content(instruction: Instruction) -> Instruction:
    """Return an instruction without places and without the spelling of its literal."""
    literal = instruction.literal and Literal("".join(instruction.literal.text.split()))
    return instruction._replace(start=0, end=0, literal=literal)


def _mutants(text: str, count: int) -> list[str]:
    chance = random.Random(7)
    made = []
    for _ in range(count):
        at = chance.randrange(len(text))
        end = min(len(text), at + chance.choice((1, 1, 1, 2, 5, 40)))
        put = chance.choice(("", "\n", " ", ",", "}", "{", '"', "/*", ")", text[at:end] * 2, "%x"))
        made.append(text[:at] + put + text[end:])
    return made


def test_mutants() -> None:
    """Wherever a text is changed, both ways agree on what it is or what is wrong."""
    for text in _mutants(PRINTED, 400):
        assert _outcome(text, fast=True) == _outcome(text, fast=False), text


@pytest.mark.parametrize(
    "text",
    [
        PRINTED.replace("\n", "\r\n"),
        PRINTED.replace("\n  ", " "),
        PRINTED.replace(", ", "\n , "),
        PRINTED.replace(" = ", " = /*c*/ ").replace("\n}", "\n} // end"),
        PRINTED.replace("  %", "\t%").replace("%", ""),
    ],
    ids=["crlf", "one-line", "commas-first", "comments", "bare-names"],
)
def test_other_spellings(text: str) -> None:
    """Blanks, comments and percent signs mean nothing to the module."""
    fast, slow, plain = parse(text), parse(text, fast=False), parse(PRINTED)
    assert fast == slow
    for ours, theirs in zip(fast.computations, plain.computations, strict=True):
        for a, b in zip(ours.instructions, theirs.instructions, strict=True):
            assert _content(a) == _content(b)
