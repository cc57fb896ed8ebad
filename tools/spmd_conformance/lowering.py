"""The child process of JAX: prints programs as JAX lowers them, and what XLA makes of them.

The number of virtual devices is fixed when JAX starts. For each program one line of JSON: its text,
XLA's program of one device, and the file of its arguments and results.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from tools.spmd_conformance.program import Program, argument, drawn, mesh_of, spec
from tools.spmd_conformance.table import PARTS


def lowered(program: Program, folder: Path) -> dict[str, Any]:
    """Return one program as data; its arrays go to a file."""
    mesh = mesh_of(program.mesh, typed=program.typed)
    given = [argument(text, mesh) for text in program.arguments]
    options: dict[str, Any] = {}
    if program.result:
        options["out_shardings"] = NamedSharding(mesh, spec(program.result))
    with jax.set_mesh(mesh):
        staged = jax.jit(program.function, keep_unused=True, **options)
        made = staged.lower(*(a for a, _ in given))
        compiled = made.compile()
        record = {
            "name": program.name,
            "text": made.as_text(dialect="hlo"),
            "theirs": compiled.as_text(),
            "arrays": "",
        }
        if not program.runs:
            return record
        values = [drawn(stated, limit, i) for i, (stated, limit) in enumerate(given)]
        shardings = jax.tree.leaves(compiled.input_shardings)
        placed = (jax.device_put(v, s) for v, s in zip(values, shardings, strict=True))
        results = compiled(*placed)
    if program.alone:
        with jax.set_mesh(mesh_of(program.mesh, alone=True)):
            results = jax.jit(program.function)(*values)
    arrays = {f"argument{i}": _plain(v) for i, v in enumerate(values)}
    for i, result in enumerate(jax.tree.leaves(results)):
        arrays[f"result{i}"] = _plain(np.asarray(result))
    path = folder / f"{program.name.replace('/', '.')}.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return {**record, "arrays": str(path)}


def _plain(values: np.ndarray) -> np.ndarray:
    """Return values in a type that NumPy itself stores; f32 has all of bf16 and f16."""
    return values.astype(np.float32) if values.dtype.name in ("bfloat16", "float16") else values


def main() -> None:
    """Print the programs that the arguments name: a folder for arrays, a dialect, names."""
    folder, dialect, *names = sys.argv[1:]
    jax.config.update("jax_use_shardy_partitioner", dialect == "shardy")
    each = [(part, program) for part, programs in PARTS.items() for program in programs]
    for part, program in each:
        if (names and program.name not in names) or (program.in_shardy and dialect != "shardy"):
            continue
        try:
            record = lowered(program, Path(folder))
        except Exception as error:  # XLA's faults are of every class: shown, not fatal
            record = {"name": program.name, "fault": f"{type(error).__name__}: {error}"}
        print(json.dumps({**record, "part": part}), flush=True)


if __name__ == "__main__":
    main()
