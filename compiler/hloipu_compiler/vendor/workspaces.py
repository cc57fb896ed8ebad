"""Workspace results of library calls: unread buffers."""

from hloipu_compiler.formulas.call import Call
from hloipu_compiler.formulas.text import Value


def workspaces(call: Call, first: int) -> list[Value]:
    """Return zeros for a call's results from one on, which are to be bytes."""
    spare = call.results[first:]
    call.need(all(kind in ("s8", "u8") for kind, _ in spare), "it has another result")
    return [call.text.full(kind, dims, 0) for kind, dims in spare]
