"""HLO text in: from a path, an open file or a text, to a parsed or verified module."""

from pathlib import Path
from typing import IO, Any

from hloipu_compiler.hlo.parse import parse as parse_source
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify as verify_module
from hloipu_runtime.errors import UsageError

HloInput = str | Path | IO[str] | IO[bytes]
"""A path, an open file, or the text itself: a `str` with a newline in it is a text."""

PROTOBUF_HINT = (
    "convert it once with JAX: "
    "jaxlib._hlo.HloModule.from_serialized_hlo_module_proto(data).to_string()"
)


def read_source(given: HloInput) -> Source:
    """Return the text of an input with the name to show for it.

    Raises UsageError where there is no such file, or what it holds is not text.
    """
    if isinstance(given, str) and "\n" in given:
        return Source(given)
    if isinstance(given, str | Path):
        try:
            return Source(decoded(Path(given).read_bytes(), str(given)), str(given))
        except OSError as error:
            raise UsageError(
                "E3001",
                f"cannot read {str(given)!r}: {error.strerror}",
                hint="give a path to an HLO text dump, or the text itself with its line ends",
            ) from error
    data = given.read()
    name = str(getattr(given, "name", "<file>"))
    return Source(data if isinstance(data, str) else decoded(data, name), name)


def decoded(data: bytes, name: str) -> str:
    """Return bytes as text; latin-1 keeps the bytes of strings that are not UTF-8 apart."""
    if data[:4] == b"\x7fELF" or data[:2] in (b"PK", b"\x1f\x8b") or (b"\0" in data[:4096]):
        raise UsageError("E3002", f"{name!r} is not HLO text but a binary file", hint=PROTOBUF_HINT)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse(given: HloInput) -> Module:
    """Read HLO text into a module, as XLA's parser does; raises ParseError or LimitError."""
    return parse_source(read_source(given))


def verify(given: HloInput) -> Module:
    """Read HLO text and check it, as XLA's parser and verifier do.

    Raises ParseError, VerifyError (with every fault found) or LimitError.
    """
    module = parse(given)
    verify_module(module)
    return module


def evaluate(given: HloInput, *arguments: Any) -> list[Any]:
    """Compute a module's values on arrays in entry-parameter order, op by op.

    Arrays are numpy's, with ml_dtypes for bf16, f8 and the like; a tuple parameter takes a list.
    A module that is written for several replicas or partitions is evaluated on all of them, each
    on the same arguments; the results are the first one's.
    Returns the leaves of the result, in order. Raises what `verify` raises, UsageError where an
    argument does not fit, UnsupportedError and LimitError where the module cannot be computed.
    """
    # imports numpy and every kernel
    from hloipu_compiler.evaluate.participants import evaluate_everywhere

    return evaluate_everywhere(verify(given), *arguments)
