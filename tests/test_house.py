"""The house rule: imports run down the stairs, never up."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOTS = (ROOT, ROOT / "compiler", ROOT / "runtime")

# Every room, from the attic to the cellar. A room may import the rooms below it, and itself.
STAIRS = (
    "hloipu.__main__",
    "hloipu.cli",
    "hloipu",
    "hloipu.options",
    "hloipu_compiler",
    "hloipu_compiler.choosing",
    "hloipu_compiler.driver",
    "hloipu_compiler.poplar",
    "hloipu_compiler.vendor",
    "hloipu_compiler.popops",
    "hloipu_compiler.formulas",
    "hloipu_compiler.pricing",
    "hloipu_compiler.compilation",
    "hloipu_compiler.codegen",
    "hloipu_compiler.sharding",
    "hloipu_compiler.stacking",
    "hloipu_compiler.staging",
    "hloipu_compiler.passes",
    "hloipu_compiler.plan",
    "hloipu_compiler.reduce",
    "hloipu_compiler.evaluate",
    "hloipu_compiler.verify",
    "hloipu_compiler.analysis",
    "hloipu_compiler.hlo",
    "hloipu_compiler.inference",
    "hloipu_compiler.ir",
    "hloipu_compiler.explanations",
    "hloipu_compiler.errors",
    "hloipu_compiler.source",
    "hloipu_compiler.memo",
    "hloipu_runtime",
    "hloipu_runtime.compiled",
    "hloipu_runtime.session",
    "hloipu_runtime.session_engine",
    "hloipu_runtime.session_state",
    "hloipu_runtime.session_inputs",
    "hloipu_runtime.session_clock",
    "hloipu_runtime.device",
    "hloipu_runtime.checkpoint",
    "hloipu_runtime.sim",
    "hloipu_runtime.streams",
    "hloipu_runtime.findings",
    "hloipu_runtime.report",
    "hloipu_runtime.memory",
    "hloipu_runtime.costing",
    "hloipu_runtime.executable_cache",
    "hloipu_runtime.executable",
    "hloipu_runtime.program_file",
    "hloipu_runtime.artefact",
    "hloipu_runtime.program_text",
    "hloipu_runtime.records",
    "hloipu_runtime.program",
    "hloipu_runtime.codelets",
    "hloipu_runtime.machine",
    "hloipu_runtime.kernels",
    "hloipu_runtime.element_types",
    "hloipu_runtime.atomic_file",
    "hloipu_runtime.collection",
    "hloipu_runtime.turns",
    "hloipu_runtime.arguments",
    "hloipu_runtime.errors",
    "hloipu_runtime.plain_text",
)


def stair(module: str) -> int:
    """Index in STAIRS of the room that `module` stands in."""
    while module not in STAIRS:
        module = module.rpartition(".")[0]
    return STAIRS.index(module)


def modules() -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for root, package in zip(ROOTS, ("hloipu", "hloipu_compiler", "hloipu_runtime"), strict=True):
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append((".".join(p for p in parts if p != "__init__"), path))
    return found


def imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return [name for name in names if name.startswith("hloipu")]


def test_imports_run_down_the_stairs() -> None:
    upstairs = [
        f"{module} imports {name}"
        for module, path in modules()
        for name in imports(path)
        if stair(name) < stair(module)
    ]
    assert not upstairs


def test_every_room_stands_on_a_stair_of_its_own() -> None:
    rooms = {STAIRS[stair(module)] for module, _ in modules()}
    assert rooms == set(STAIRS)


def run_python(code: str) -> str:
    path = ":".join(map(str, ROOTS))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_runtime_runs_without_the_compiler() -> None:
    heavy = ("hloipu", "hloipu_compiler", "lark", "networkx")
    code = f"import sys, hloipu_runtime; print(*[m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == ""


def test_the_face_imports_nothing_heavy() -> None:
    heavy = ("lark", "networkx", "numpy", "click")
    code = f"import sys, hloipu; print(*[m for m in {heavy} if m in sys.modules])"
    assert run_python(code) == ""
