"""Attributes of a module's header line."""

from typing import TYPE_CHECKING

from hloipu_compiler.hlo.attributes.attribute_values import read_value
from hloipu_compiler.hlo.attributes.raw_checks import check_raw
from hloipu_compiler.hlo.syntax.records import Stretch, SyntaxAttribute
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attribute_kinds import MODULE_KINDS
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Alias, Attributes, Raw, Value
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import subshape

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build import ModuleBuilder


def read_header(
    module: "ModuleBuilder", header: tuple[SyntaxAttribute, ...], entry: Computation | None
) -> Attributes:
    """Read the header's attributes; unknown ones are kept as text."""
    values: dict[str, Value] = {}
    for attribute in header:
        key = attribute.key
        text = module.source.text[slice(*attribute.value)]
        if key in values:
            at = Stretch(attribute.key_at, attribute.key_at + len(key))
            module.report(at, "E0125", f"{key}= is written twice")
            continue
        kind = MODULE_KINDS.get(key)
        try:
            value = Raw(text) if kind is None else read_value(kind, text, module.reader.shapes)
            if kind is not None:
                check_raw(key, text)
        except TextFault as fault:
            module.report_text(fault, attribute.value)
            continue
        values[key] = value
        if key == "input_output_alias" and entry is not None and entry.root >= 0:
            _check_aliases(module, attribute.value, value, entry)
    return Attributes(values) if values else NO_ATTRIBUTES


def _check_aliases(
    module: "ModuleBuilder", where: Stretch, aliases: Value, entry: Computation
) -> None:
    """Report an alias of an output that does not exist, as XLA's parser does."""
    root = entry.instructions[entry.root].shape
    for alias in aliases if isinstance(aliases, tuple) else ():
        if isinstance(alias, Alias) and subshape(root, alias.output_index) is None:
            index = ",".join(map(str, alias.output_index))
            module.report(where, "E0171", f"there is no output {{{index}}} in {root}")
            return
