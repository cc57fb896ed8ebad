"""Functions of MLIR files, such as Shardy's tests, as HLO texts.

A child process converts a file's functions, since jaxlib dies of some: `python -m
tools.spmd_texts.mlir FILE FIRST` prints how many there are, and from number FIRST on a line of JSON
for each, its name and its text, which is empty where there is no HLO for it. Calls on a single
device or of unknown ops have none. `xla.sdy.sharding` of ops that are no constraints says nothing
to XLA, nor to hloipu.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_NEXT = re.compile(r"^// -----.*$", re.MULTILINE)
_CALLEE = re.compile(r"(?:call|callee = )\s*@(\w+)")


def functions_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the HLO text of each function of a file that nothing in it calls."""
    first = count = 0
    while first <= count:
        command = [sys.executable, "-m", "tools.spmd_texts.mlir", str(path), str(first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        head, *lines = (json.loads(line) for line in done.stdout.splitlines() or ["-1"])
        yield from ((name, text) for name, text in lines if text)
        first, count = first + len(lines) + 1, head


def _sources(text: str) -> Iterator[tuple[str, str]]:
    """Yield each function as a module of its own, its name `main`, with meshes and callees."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    for number, part in enumerate(_NEXT.split(text)):
        with mlir.make_ir_context():
            try:
                module = ir.Module.parse(part)
            except ir.MLIRError:
                continue  # It has ops of dialects that jaxlib has not.
            ops = list(module.body.operations)
            called = set(_CALLEE.findall(str(module)))
            functions = {
                str(op.attributes["sym_name"]).strip('"'): str(op)
                for op in ops
                if op.operation.name == "func.func"
            }
            meshes = [str(op) for op in ops if op.operation.name == "sdy.mesh"]
            callees = [source for name, source in functions.items() if name in called]
            for name, source in functions.items():
                if name not in called:
                    main = re.sub(r"func\.func (?:private |public )?@\w+", "func.func public @main",
                                  source, count=1)  # fmt: skip
                    yield f"{number}.{name}", "\n".join(["module {", *meshes, *callees, main, "}"])


def _hlo_text(source: str) -> str:
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        try:
            text = mlir.module_to_string(ir.Module.parse(source), enable_debug_info=False)
            convert = _jax.mlir.mlir_module_to_xla_computation
            return str(convert(text, use_tuple_args=False, return_tuple=False).as_hlo_text())
        except (ir.MLIRError, RuntimeError, ValueError):
            return ""


if __name__ == "__main__":
    sources = list(_sources(Path(sys.argv[1]).read_text(encoding="utf-8")))
    print(len(sources), flush=True)
    for name_, source_ in sources[int(sys.argv[2]) :]:
        print(json.dumps([name_, _hlo_text(source_)]), flush=True)
