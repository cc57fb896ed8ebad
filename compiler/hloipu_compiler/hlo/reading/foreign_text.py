"""What a text is that is not HLO, by its beginning, and how to get HLO in its place."""

import re

_LOOKED_AT = 4096
_FOREIGN = (
    (
        re.compile(r"\s*(?:#\w+ = |#loc|module\b[^\n]*\{|func\.func\b)"),
        "this looks like StableHLO or another MLIR text; print HLO instead, in JAX by "
        'lowered.compiler_ir("hlo").as_hlo_text()',
    ),
    (
        re.compile(r"\s*\{ lambda\b"),
        "this looks like a jaxpr; print HLO instead: "
        'jax.jit(f).lower(*args).compiler_ir("hlo").as_hlo_text()',
    ),
    (
        re.compile(r"\s*(?:hlo_module|computations|name:|entry_computation_name:)[^\n]*[{:]"),
        "this looks like a protobuf as text; dump with --xla_dump_hlo_as_text instead",
    ),
    (re.compile(r"\s*<(?:!DOCTYPE|html)", re.IGNORECASE), "this looks like a web page"),
)


def foreign_hint(text: str) -> str:
    """Return what a refused text seems to be and what to do, or nothing."""
    beginning = text[:_LOOKED_AT]
    if "HloModule" in beginning:
        return ""
    return next((hint for pattern, hint in _FOREIGN if pattern.match(beginning)), "")
