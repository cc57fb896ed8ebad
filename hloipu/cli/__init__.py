"""The command line: one module a subcommand, each imported when it is called.

Product goes to stdout, diagnostics to stderr. Exit codes: 0 ok, 2 usage, 3 invalid HLO,
4 unsupported, 5 does not fit, 6 mismatch, 7 stream, 8 limit, 9 corrupt artefact, 130 interrupted,
141 the reader of stdout is gone, 1 our own bugs.
"""

import sys
from contextlib import suppress
from importlib import import_module

from hloipu import __version__

COMPLETE_VARIABLE = "_HLOIPU_COMPLETE"
"""By which a shell asks for what may come next."""

INTERRUPTED = 130
"""Exit code of a command that was interrupted: that of shells, 128 and the signal's number."""

COMMANDS = {
    "capture": "run a script and keep the HLO modules that it compiles",
    "compile": "compile a module for a machine: does it fit, and where do the cycles go",
    "run": "compile and run a module on the simulated machine, with real values",
    "estimate": "estimate cycles and bytes of a module, without values",
    "sweep": "estimate a module under every combination of values, on many workers",
    "sweep-show": "show the rows of a sweep, and those that none beats",
    "advise": "say what keeps a module slow or large, and measure what would cure it",
    "verify": "check HLO text files and show every fault where it is",
    "show": "say what is in a module: ops, parameters, FLOPs, bytes, largest tensors",
    "eval": "compute a module's values op by op",
    "check": "compare a module's values with XLA:CPU, f64 or a file; name the first bad op",
    "targets": "list the machines, or show one's numbers with their sources",
    "opt": "run passes on a module and print it, step by step where asked",
    "reduce": "shrink a module to its smallest form that a test still holds for",
    "emit": "print a stage of a module as text, JSON, DOT or GraphML",
    "feed-bench": "measure how fast a file's arrays can be fed, and what an executable needs",
    "report": "write a page to look at: time, memory, pipelines, graph, findings",
    "trace": "write when each step runs on each IPU, for ui.perfetto.dev",
    "compare": "show two profiles side by side, and which instructions make the difference",
    "init": "write an hloipu.toml with every option, its help and its default",
    "explain": "say what an error code means and what to do",
    "completion": "print the script by which a shell completes commands and options",
}
"""Subcommand -> one line of help; this package's module of that name, `-` as `_`, implements it."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        # Answered without importing click: scripts ask this a lot.
        if sys.argv[1:] == ["--version"] and sys.stdout is not None:
            with suppress(OSError):  # the application says what is wrong with stdout
                print(f"hloipu {__version__}", flush=True)
                return
        import_module("hloipu.cli.application").run()
    except KeyboardInterrupt:  # while modules are imported; later ones are told what was going on
        sys.exit(INTERRUPTED)
