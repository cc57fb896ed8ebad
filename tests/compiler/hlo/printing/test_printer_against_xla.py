"""What we print means to XLA what it was read from: XLA prints both alike."""

import re

from hloipu_compiler.errors import ParseError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import CANONICAL, SHORT, print_module
from tests.support.texts_valid import valid_texts
from tests.support.xla_oracle import Oracle

NO_SHAPE = re.compile(r"= *(?:[a-z-]+)\(")
"""A statement without a shape: XLA then infers a layout as well, which we leave open."""


def without_header(text: str) -> str:
    """Drop the first line, and what XLA adds to the names of nested instructions."""
    return text.partition("\n")[2].replace(".anon", "")


def test_printed_texts_mean_the_same(oracle: Oracle) -> None:
    compared = 0
    for text in valid_texts():
        if not text.lstrip().startswith("HloModule") or "{...}" in text or NO_SHAPE.search(text):
            continue
        if not oracle.parse(text).accepted:
            continue
        try:
            module = parse(text)
        except ParseError:  # the parser's own tests tell
            continue
        printed = print_module(module)
        assert without_header(oracle.reprint(printed)) == without_header(oracle.reprint(text))
        assert oracle.parse(print_module(module, SHORT)).accepted
        assert oracle.parse(print_module(module, CANONICAL)).accepted
        compared += 1
    assert compared > 300
