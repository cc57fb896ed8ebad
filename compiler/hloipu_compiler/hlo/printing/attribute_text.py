"""Attribute values to text, as XLA prints them.

Sources: openxla/xla `xla/hlo/ir/hlo_instructions.cc` (PrintExtraAttributesImpl),
`xla/window_util.cc`, `xla/hlo/ir/hlo_input_output_alias_config.cc`.
"""

from collections.abc import Callable, Iterable

from hloipu_compiler.hlo.syntax.strings import quote
from hloipu_compiler.ir.attribute_kinds import AttributeKind as K
from hloipu_compiler.ir.attributes import (
    Alias,
    ConvolutionLabels,
    PaddingDimension,
    ProgramShape,
    Raw,
    ReplicaGroups,
    SliceRange,
    Value,
    Window,
)
from hloipu_compiler.ir.shapes import Shape
from hloipu_runtime.kernels.windows_geometry import WindowDimension

ShapeText = Callable[[Shape], str]
NameText = Callable[[str], str]


def value_text(key: str, kind: K | None, value: Value, shape: ShapeText, name: NameText) -> str:
    """Return the text of one attribute's value.

    `kind` is the key's, None for an unknown key; `shape` and `name` write shapes and the names of
    computations.
    """
    if isinstance(value, str):
        return _string_text(kind, value, name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Window):
        return window_text(value)
    if isinstance(value, ConvolutionLabels):
        return f"{value.lhs}_{value.rhs}->{value.out}"
    if isinstance(value, ReplicaGroups):
        return value.text or _lists(value.groups)
    if isinstance(value, ProgramShape):
        parameters = ", ".join(map(shape, value.parameters))
        return f"{{({parameters})->{shape(value.result)}}}"
    if isinstance(value, tuple):
        return _tuple_text(key, kind, value, shape, name)
    return shape(value)


def _string_text(kind: K | None, value: str, name: NameText) -> str:
    if isinstance(value, Raw):
        return str(value)
    if kind is K.STRING:
        return quote(value)
    if kind is K.COMPUTATION:
        return name(value)
    return value


def _tuple_text(
    key: str, kind: K | None, value: tuple[object, ...], shape: ShapeText, name: NameText
) -> str:
    if kind is K.PADDING:
        return _padding_text(value)  # type: ignore[arg-type]
    if kind is K.SLICES:
        return _slices_text(value)  # type: ignore[arg-type]
    if kind is K.ALIASES:
        kinds = key == "input_output_alias"
        return f"{{ {', '.join(_alias_text(alias, kinds) for alias in value)} }}"  # type: ignore[arg-type]
    if kind is K.DONORS:
        donors = (f"({d.parameter}, {_list(d.parameter_index)})" for d in value)  # type: ignore
        return f"{{ {', '.join(donors)} }}"
    if kind is K.INTEGER_LISTS:
        return _lists(value)  # type: ignore[arg-type]
    if kind is K.BOOLEANS:
        return f"{{{','.join('true' if flag else 'false' for flag in value)}}}"
    if kind is K.COMPUTATIONS or kind is K.INSTRUCTIONS:
        return f"{{{', '.join(name(str(item)) for item in value)}}}"
    if kind is K.SHAPES:
        return f"{{{', '.join(map(shape, value))}}}"  # type: ignore[arg-type]
    return _list(value)


def _list(items: Iterable[object]) -> str:
    return f"{{{','.join(map(str, items))}}}"


def _lists(lists: Iterable[Iterable[int]]) -> str:
    return f"{{{','.join(map(_list, lists))}}}"


def _padding_text(padding: tuple[PaddingDimension, ...]) -> str:
    if any(dimension.interior for dimension in padding):
        return "x".join(f"{p.low}_{p.high}_{p.interior}" for p in padding)
    return "x".join(f"{p.low}_{p.high}" for p in padding)


def _slices_text(ranges: tuple[SliceRange, ...]) -> str:
    if any(r.stride != 1 for r in ranges):
        return f"{{{', '.join(f'[{r.start}:{r.limit}:{r.stride}]' for r in ranges)}}}"
    return f"{{{', '.join(f'[{r.start}:{r.limit}]' for r in ranges)}}}"


def _alias_text(alias: Alias, with_kind: bool) -> str:
    kind = f", {alias.kind}" if with_kind else ""
    target = f"({alias.parameter}, {_list(alias.parameter_index)}{kind})"
    return f"{_list(alias.output_index)}: {target}"


def window_text(window: Window) -> str:
    """Return a window with its braces; what is the default in every dimension is left out."""
    dimensions = window.dimensions
    parts = []
    for key, text, is_default in _WINDOW_PARTS:
        if key == "size" or not all(map(is_default, dimensions)):
            parts.append(f"{key}={'x'.join(map(text, dimensions))}")
    return f"{{{' '.join(parts)}}}" if dimensions else "{}"


_WINDOW_PARTS: tuple[
    tuple[str, Callable[[WindowDimension], str], Callable[[WindowDimension], bool]], ...
] = (
    ("size", lambda d: str(d.size), lambda d: False),
    ("stride", lambda d: str(d.stride), lambda d: d.stride == 1),
    ("pad", lambda d: f"{d.pad_low}_{d.pad_high}", lambda d: d.pad_low == d.pad_high == 0),
    ("lhs_dilate", lambda d: str(d.base_dilation), lambda d: d.base_dilation == 1),
    ("rhs_dilate", lambda d: str(d.window_dilation), lambda d: d.window_dilation == 1),
    ("rhs_reversal", lambda d: str(int(d.reversal)), lambda d: not d.reversal),
)
