"""`hloipu capture -o DIR -- COMMAND`: the HLO modules that a script compiles."""

import json

import click

from hloipu.capturing import Capture, CapturedModule, capture
from hloipu.cli.inputs import limit_option
from hloipu.cli.saying import say
from hloipu.cli.table import counted, readable_bytes, readable_count, table
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_runtime.plain_text import printable


@click.command("capture", context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder for the modules.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    help="Stop the command after this time, and take what it had compiled.",
)
@click.option(
    "--most", type=click.IntRange(0), default=10, show_default=True, help="Length of the list."
)
@limit_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    output: str,
    seconds: float | None,
    most: int,
    limits: Limits,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND and keep the HLO modules that XLA compiles in it, those with most work first.

    \b
    hloipu capture -o dumps -- python train.py

    For JAX, TensorFlow and PyTorch/XLA: texts before optimisation, with constants and source lines.
    Ctrl-C, or --seconds, ends the command; what it had compiled by then is kept. Ends with the
    command's exit code.
    """
    captured = capture(command, output, seconds=seconds, limits=limits, output_to_stderr=as_json)
    say(json.dumps(captured.record(), ensure_ascii=False) if as_json else text(captured, most))
    return captured.exit_code


def text(captured: Capture, most: int) -> str:
    """Return the list of modules, and the command to go on with."""
    rows = captured.modules[:most]
    left = len(captured.modules) - len(rows)
    chosen = captured.chosen
    path = printable(f"{captured.folder.rstrip('/')}/{chosen.file}")
    return "\n".join(
        [
            f"{counted(len(captured.modules), 'module')} in {printable(captured.folder)}, "
            "text before optimisation, most work first",
            table(
                ("file", "from", "what", "compiled", "ops", "parameters", "state", "FLOP", "moved"),
                [_cells(module) for module in rows],
                left=3,
            ),
            *([f"… and {counted(left, 'smaller module')}, listed in capture.json"] if left else []),
            *(
                f"{printable(module.file)}: constants are left out of the text; "
                "--fill-elided SEED puts random values there"
                for module in rows
                if module.elided
            ),
            *(
                f"{printable(module.file)}: not read: {printable(module.error)}"
                for module in rows
                if module.error
            ),
            *(
                [f"the command ended with exit code {captured.exit_code}; so does this one"]
                if captured.exit_code
                else []
            ),
            *([] if chosen.error else _next(chosen, path)),
        ]
    )


def _next(chosen: CapturedModule, path: str) -> list[str]:
    more = _IN_SCRIPTS.get(chosen.framework) if chosen.kind else None
    return [
        f"{chosen.kind or 'most work'}: {path}",
        *([f"  {more}"] if more else []),
        f"next: hloipu compile {path}",
    ]


_IN_SCRIPTS = {
    "TensorFlow": "to train it here, with names of variables and lines of your own: "
    "hloipu.tensorflow.lower",
    "PyTorch/XLA": "to train it here, with names of parameters and what is state: "
    "hloipu.torch_xla.lower",
}
"""What a text of a framework does not say, and who does."""


def _cells(module: CapturedModule) -> tuple[str, ...]:
    bound = "" if module.exact else "≥"
    return (
        printable(module.file),
        module.framework,
        module.kind,
        str(module.compiled),
        str(module.instructions),
        f"{module.parameters}, {readable_bytes(module.parameter_bytes)}",
        str(module.state),
        bound + readable_count(module.flops),
        bound + readable_bytes(module.bytes_moved),
    )
