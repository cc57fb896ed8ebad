"""What XLA's parser asks of attribute values beyond their form: known words, one dimension only…

Source: openxla/xla `xla/hlo/parser/hlo_parser.cc` (CreateInstruction and the enum readers).
"""

from collections.abc import Iterator, Mapping

from hloipu_compiler.hlo.text_fault import TextFault
from hloipu_compiler.ir.attributes import Value


def check_attribute_rules(
    opcode: str, values: Mapping[str, Value]
) -> Iterator[tuple[str, TextFault]]:
    """Yield (key, fault) for each value that `opcode` cannot take."""
    yield from ()
