"""Inputs that several subcommands take."""

import sys
from pathlib import Path

import click

from hloipu.text import decoded, read_source
from hloipu_compiler.source import Source

HLO_FILE = click.Path(allow_dash=True)


def read_input(name: str) -> Source:
    """Return the text of a file, or of standard input for `-`."""
    if name == "-":
        return Source(decoded(sys.stdin.buffer.read(), "<stdin>"), "<stdin>")
    return read_source(Path(name))  # a path with a line end in it is still a path, never a text
