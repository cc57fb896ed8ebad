"""Values that are kept as text but must be ones that XLA's parser reads: shardings, origins…"""

from collections.abc import Callable

from hloipu_compiler.hlo.shape_text import ShapeReader

_CHECKS: dict[str, Callable[[str], object]] = {}


def check_raw(key: str, text: str, shapes: ShapeReader) -> None:
    """Check a raw value that has a language of its own; TextFault where it is wrong."""
    check = _CHECKS.get(key)
    if check is not None:
        check(text)
