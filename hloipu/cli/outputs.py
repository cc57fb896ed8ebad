"""Files that subcommands write, as options: looked at before the work, not after it."""

from typing import Any

import click


class OutputFile(click.ParamType[str]):
    """A path that can be written: not empty, no folder, in a folder that is there."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path; raises UsageError E3004 where nothing could be written there."""
        from hloipu_runtime.atomic_file import check_writable

        check_writable(value)
        return str(value)


OUTPUT_FILE = OutputFile()
