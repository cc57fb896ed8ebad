"""The house rules: imports run down the stairs, files are round, little is kept, few parameters."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = (ROOT, ROOT / "compiler", ROOT / "runtime")

# Every room, from the attic to the cellar. A room may import the rooms below it, and itself.
STAIRS = (
    "hloipu.__main__",
    "hloipu.cli.commands",
    "hloipu.cli",
    "hloipu",
    "hloipu.check",
    "hloipu.check.judging",
    "hloipu.initial_arrays",
    "hloipu.inputs",
    "hloipu.keras",
    "hloipu.jax",
    "hloipu.modules",
    "hloipu.ports",
    "hloipu.training",
    "hloipu.hosts",
    "hloipu.sweeping",
    "hloipu.api",
    "hloipu.advice",
    "hloipu.choosing",
    "hloipu.choice_trials",
    "hloipu.fitting",
    "hloipu.encoded",
    "hloipu.sharding",
    "hloipu.compile_request",
    "hloipu.definitions",
    "hloipu.step_elements",
    "hloipu.text",
    "hloipu.wrapping",
    "hloipu.showing",
    "hloipu.pipelining",
    "hloipu.places",
    "hloipu.options",
    "hloipu.xla_cpu",
    "hloipu_compiler",
    "hloipu_compiler.explanations",
    "hloipu_compiler.graphcore",
    "hloipu_compiler.lowering",
    "hloipu_compiler.partition",
    "hloipu_compiler.partition.search",
    "hloipu_compiler.partition.sharding_search",
    "hloipu_compiler.driver",
    "hloipu_compiler.step_merging",
    "hloipu_compiler.distributing",
    "hloipu_compiler.compilation",
    "hloipu_compiler.cost_survey",
    "hloipu_compiler.lowering.hoisting",
    "hloipu_compiler.lowering.pipelines",
    "hloipu_compiler.lowering.regions",
    "hloipu_compiler.lowering.ops",
    "hloipu_compiler.lowering.core",
    "hloipu_compiler.layout",
    "hloipu_compiler.on_demand",
    "hloipu_compiler.graphcore.encoding",
    "hloipu_compiler.graphcore.encoding.loops",
    "hloipu_compiler.graphcore.encoding.core",
    "hloipu_compiler.partition.placement",
    "hloipu_compiler.partition.spmd",
    "hloipu_compiler.partition.scans",
    "hloipu_compiler.partition.stages",
    "hloipu_compiler.partition.training",
    "hloipu_compiler.passes",
    "hloipu_compiler.passes.fusion",
    "hloipu_compiler.passes.loops",
    "hloipu_compiler.passes.algebra",
    "hloipu_compiler.planners",
    "hloipu_compiler.reduce",
    "hloipu_compiler.vendor",
    "hloipu_compiler.graphcore.custom_calls",
    "hloipu_compiler.formulas",
    "hloipu_compiler.hlo",
    "hloipu_compiler.hlo.printing",
    "hloipu_compiler.hlo.reading",
    "hloipu_compiler.passes.framework",
    "hloipu_compiler.plan",
    "hloipu_compiler.interpret",
    "hloipu_compiler.interpret.ops",
    "hloipu_compiler.interpret.planning",
    "hloipu_compiler.memo",
    "hloipu_compiler.verify",
    "hloipu_compiler.analysis",
    "hloipu_compiler.errors",
    "hloipu_compiler.hlo.attributes",
    "hloipu_compiler.hlo.literals",
    "hloipu_compiler.hlo.syntax",
    "hloipu_compiler.inference",
    "hloipu_compiler.ir",
    "hloipu_compiler.source",
    "hloipu_runtime",
    "hloipu_runtime.compiled",
    "hloipu_runtime.collection",
    "hloipu_runtime.executable_cache",
    "hloipu_runtime.executable",
    "hloipu_runtime.findings",
    "hloipu_runtime.late_table",
    "hloipu_runtime.memory",
    "hloipu_runtime.program_io",
    "hloipu_runtime.program_io.file",
    "hloipu_runtime.program_io.text",
    "hloipu_runtime.program_io.records",
    "hloipu_runtime.session",
    "hloipu_runtime.program_io.frame",
    "hloipu_runtime.report",
    "hloipu_runtime.costs",
    "hloipu_runtime.simulate",
    "hloipu_runtime.simulate.exact",
    "hloipu_runtime.simulate.functional",
    "hloipu_runtime.simulate.run",
    "hloipu_runtime.iteration_limit",
    "hloipu_runtime.program.proof",
    "hloipu_runtime.streams",
    "hloipu_runtime.arguments",
    "hloipu_runtime.program",
    "hloipu_runtime.codelets",
    "hloipu_runtime.codelets.dense",
    "hloipu_runtime.codelets.indexed",
    "hloipu_runtime.codelets.ops",
    "hloipu_runtime.codelets.costs",
    "hloipu_runtime.codelets.core",
    "hloipu_runtime.kernels",
    "hloipu_runtime.kernels.linear_algebra",
    "hloipu_runtime.kernels.contractions",
    "hloipu_runtime.kernels.elementwise",
    "hloipu_runtime.kernels.core",
    "hloipu_runtime.kernels.native",
    "hloipu_runtime.atomic_file",
    "hloipu_runtime.cache_folder",
    "hloipu_runtime.element_types",
    "hloipu_runtime.machine",
    "hloipu_runtime.errors",
    "hloipu_runtime.frozen",
    "hloipu_runtime.nearest",
    "hloipu_runtime.plain_text",
    "hloipu_runtime.reached",
    "hloipu_runtime.watching",
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


@dataclass
class Facts:
    """What a module's text says that the rules are about."""

    imports: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """What it imports, with the names that it takes out of modules: `package.module.name`."""
    mutable: set[str] = field(default_factory=set)
    """Names of the module that are bound to containers."""
    written: list[tuple[str, bool]] = field(default_factory=list)
    """Names that functions write into and have not made, and whether they are of other modules."""
    faults: list[str] = field(default_factory=list)
    """Of state that is kept in other ways."""
    many: list[str] = field(default_factory=list)
    """Functions with too many parameters."""


@cache
def facts() -> dict[str, Facts]:
    """Facts of each module; every file is parsed once."""
    return {module: facts_of(path.read_text(encoding="utf-8")) for module, path in modules()}


def test_imports_run_down_the_stairs() -> None:
    upstairs = [
        f"{module} imports {name}"
        for module, known in facts().items()
        for name in known.imports
        if name.startswith("hloipu") and stair(name) < stair(module)
    ]
    assert not upstairs


def test_every_room_stands_on_a_stair_of_its_own() -> None:
    rooms = {STAIRS[stair(module)] for module, _ in modules()}
    assert rooms == set(STAIRS)


LEAST_LINES = 60
"""Of a module with a single importer: a shorter one belongs into it, or into a sibling."""
SHORT_MODULES = {
    "hloipu.passes": "a public name, for users to import",
    "hloipu_compiler.graphcore.encoding.reading": "brings in a whole room, for encoded steps",
    "hloipu_runtime.costs.slot_ends": "imported where a program has a pipeline",
}
"""Shorter ones that stay apart, and why."""
MOST_FILES = 25
"""Python files of one folder."""


def test_no_short_module_has_a_single_importer() -> None:
    files = {module: path for module, path in modules() if path.name != "__init__.py"}
    importers: dict[str, set[str]] = {module: set() for module in files}
    for module, known in facts().items():
        for name in known.names:
            imported = name if name in files else name.rpartition(".")[0]
            importers.get(imported, set()).add(module)
    short = {
        module
        for module, path in files.items()
        if len(importers[module]) == 1
        and len(path.read_text(encoding="utf-8").splitlines()) < LEAST_LINES
    }
    assert short == set(SHORT_MODULES)


def test_no_folder_has_too_many_files() -> None:
    files = Counter(path.parent for _, path in modules())
    assert not {folder: count for folder, count in files.items() if count > MOST_FILES}


# What is written at run time and is no bounded memo, with the reason.
TABLES = {
    "CODELETS": "filled as modules of codelets are imported",
    "LOWERINGS": "filled as modules of lowerings are imported",
    "FORMULAS": "filled as modules of formulas are imported",
    "REGISTRY": "users teach the evaluator custom calls (`register_custom_call`)",
    "LOWERED": "a user's custom call takes the place of one of these",
    "_PASSES": "passes of a user's plugin, forgotten after the call (`added_passes_forgotten`)",
    "_OFF": "a context variable: belongs to the call that sets it",
    "_SETTINGS": "a context variable, as above",
    "_LISTENER": "a context variable, as above",
    "_SEARCH": "a context variable, as above",
    "_DISPLAY": "a context variable, as above",
    "_inside_of": "belongs to a thread: the queue that the thread works for",
}
CONTAINERS = frozenset("list dict set bytearray defaultdict deque Counter OrderedDict".split())
CELLS = frozenset(("ContextVar", "local"))
WRITING = frozenset(
    "append appendleft extend insert add update setdefault pop popleft popitem remove discard "
    "clear move_to_end sort reverse __setitem__ __delitem__".split()
)
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MOST_PARAMETERS = 8


def called_name(node: ast.AST | None) -> str:
    """Name of the function or class that an expression calls, or that it is."""
    node = node.func if isinstance(node, ast.Call) else node
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class Reading(ast.NodeVisitor):
    """Goes through a module's text once."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.own: list[set[str]] = []
        """Names that each function around has made itself."""
        self.written: list[list[tuple[str, bool]]] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.facts.imports += [alias.name for alias in node.names]
            self.facts.names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.facts.imports.append(node.module)
            self.facts.names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Global):
            self.facts.faults += [f"{name} is rebound" for name in node.names]
        elif isinstance(node, FUNCTIONS):
            self._function(node)
            return
        elif not self.own and isinstance(node, ast.Assign | ast.AnnAssign):
            self._binding(node)
        elif self.own:
            self._in_function(node)
        self.generic_visit(node)

    def _binding(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        made = called_name(node.value)
        for name in (x.id for x in targets if isinstance(x, ast.Name)):
            if isinstance(node.value, DISPLAYS) or made in CONTAINERS:
                self.facts.mutable.add(name)
            if made in CELLS:
                self.facts.faults.append(f"{name} is a cell")
            if made == "Memo" and not name.endswith("_MEMO"):
                self.facts.faults.append(f"{name} is no bounded memo by its name")

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        given = node.args
        names = [x.arg for x in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        if not isinstance(node, ast.Lambda):
            if len(names) - (names[:1] in (["self"], ["cls"])) > MOST_PARAMETERS:
                self.facts.many.append(node.name)
            if names and not self.own and any(keeps_all(x) for x in node.decorator_list):
                self.facts.faults.append(f"{node.name} keeps all")
        rest = [x.arg for x in (given.vararg, given.kwarg) if x is not None]
        self.own.append({*names, *rest})
        self.written.append([])
        self.generic_visit(node)
        own, written = self.own.pop(), self.written.pop()
        left = [x for x in written if x[1] or x[0] not in own]
        (self.written[-1] if self.written else self.facts.written).extend(left)

    def _in_function(self, node: ast.AST) -> None:
        place: ast.AST | None = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.own[-1].add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute):
            place = None if isinstance(node.ctx, ast.Load) else node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            place = node.func.value if node.func.attr in WRITING else None
        if isinstance(place, ast.Name):
            self.written[-1].append((place.id, False))
        elif isinstance(place, ast.Attribute):
            self.written[-1].append((place.attr, True))  # of a module, say


def facts_of(source: str) -> Facts:
    reading = Reading()
    reading.visit(ast.parse(source))
    return reading.facts


def keeps_all(decorator: ast.expr) -> bool:
    """Whether a decorator keeps answers without a bound."""
    if called_name(decorator) == "cache":
        return True
    call = isinstance(decorator, ast.Call) and called_name(decorator) == "lru_cache"
    sizes = [*decorator.args, *(x.value for x in decorator.keywords)] if call else []  # type: ignore[attr-defined]
    return any(isinstance(x, ast.Constant) and x.value is None for x in sizes)


def state_faults(known: Facts, others: Collection[str]) -> list[str]:
    """Say what a module keeps between calls; `others`: mutable constants of all modules."""
    written = [
        f"{name} is written"
        for name, is_attribute in known.written
        if name in others or (name in known.mutable and not is_attribute)
    ]
    return sorted({x for x in (*known.faults, *written) if x.split()[0] not in TABLES})


def test_nothing_but_bounded_memos_is_kept_between_calls() -> None:
    constants = {x for known in facts().values() for x in known.mutable if x.isupper()}
    found = {module: state_faults(known, constants) for module, known in facts().items()}
    assert not {module: faults for module, faults in found.items() if faults}


STATEFUL = {
    "known = []\ndef f(x):\n    known.append(x)": "known is written",
    "known: dict[int, int] = {}\ndef f(x):\n    known[x] = 1": "known is written",
    "known = [None]\ndef f(x):\n    known[:] = [x]": "known is written",
    "known = defaultdict(list)\ndef f(x):\n    del known[x]": "known is written",
    "known = []\ndef f(x):\n    def g():\n        known.append(x)": "known is written",
    "known = None\ndef f(x):\n    global known\n    known = x": "known is rebound",
    "from room import table\ndef f(x):\n    table.OTHERS.update(x)": "OTHERS is written",
    "from room import OTHERS\ndef f(x):\n    OTHERS[x] = x": "OTHERS is written",
    "@cache\ndef f(x):\n    return x": "f keeps all",
    "@lru_cache(maxsize=None)\ndef f(x):\n    return x": "f keeps all",
    "known: Memo[int] = Memo(1)": "known is no bounded memo by its name",
    "held = ContextVar('held')": "held is a cell",
    "known = []\ndef f(x):\n    known = [x]\n    known.append(x)": "",
    "@lru_cache(maxsize=8)\ndef f(x):\n    return x": "",
    "@cache\ndef f():\n    return 1": "",
}


@pytest.mark.parametrize("source", STATEFUL)
def test_what_is_kept_is_found(source: str) -> None:
    assert ", ".join(state_faults(facts_of(source), ["OTHERS"])) == STATEFUL[source]


# Functions that may have more, with the reason; each name stands for one function.
MANY_PARAMETERS = {
    **dict.fromkeys(
        (
            f"hloipu.cli.commands.{name}.command"
            for name in "check emit eval feed_bench opt reduce run sweep".split()
        ),
        "click gives a command each of its options by name",
    ),
    "hloipu.sweeping.study.sweep": "keywords of the public API",
    "hloipu.training.trainer.__init__": "keywords of the public API",
    "hloipu_runtime.compiled.session": "keywords of the public API",
    "hloipu_runtime.streams.infeed.__init__": "keywords of the public API",
    "hloipu_runtime.streams.outfeed.__init__": "keywords of the public API",
}


def test_functions_have_few_parameters() -> None:
    many = {f"{module}.{name}" for module, known in facts().items() for name in known.many}
    assert many == set(MANY_PARAMETERS)


# Files of the product that name an opcode: what one reads who changes it. It may only go down.
FILES_NAMING = {
    "cholesky": 9, "triangular-solve": 8, "fft": 10, "topk": 10, "scatter": 27, "convolution": 21,
    "dot": 30, "transpose": 30, "broadcast": 51,
}  # fmt: skip


@pytest.mark.parametrize("opcode", FILES_NAMING)
def test_few_files_name_an_opcode(opcode: str) -> None:
    naming = [path for _, path in modules() if f'"{opcode}"' in path.read_text(encoding="utf-8")]
    assert len(naming) <= FILES_NAMING[opcode], "\n".join(map(str, naming))


def run_python(code: str) -> str:
    path = ":".join(map(str, ROOTS))
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env={"PYTHONPATH": path}, cwd=ROOT, text=True).strip()


@pytest.mark.parametrize(
    ("package", "heavy"),
    [("hloipu_runtime", "hloipu hloipu_compiler lark networkx"),
     ("hloipu", "lark networkx numpy click")],
)  # fmt: skip
def test_a_package_imports_nothing_above_it_or_heavy(package: str, heavy: str) -> None:
    code = f"import sys, {package}; print(*[m for m in {heavy.split()} if m in sys.modules])"
    assert run_python(code) == ""


PLAIN_COMPILE = """
import io, sys
from contextlib import redirect_stdout, suppress
from hloipu.cli import main

sys.argv = ["hloipu", "compile", "--no-cache", "hlo_samples/mnist_train_step.hlo"]
with redirect_stdout(io.StringIO()), suppress(SystemExit):
    main()
print(*(name for name, module in sys.modules.items() if not hasattr(module, "__path__")))
"""
FORBIDDEN = tuple(
    "hloipu.advice hloipu.check hloipu.choosing hloipu.training hloipu_compiler.cost_survey "
    "hloipu_compiler.graphcore hloipu_compiler.partition.scans hloipu_compiler.partition.search "
    "hloipu_compiler.partition.stages hloipu_compiler.partition.training hloipu_compiler.vendor "
    "hloipu_runtime.program_io.file hloipu_runtime.program_io.records "
    "hloipu_runtime.session.session hloipu_runtime.simulate hloipu_runtime.streams "
    "lark networkx jax ml_dtypes scipy numpy.random".split()
)
"""What a compile of a plain step has no use for."""
MOST_MODULES = 342
"""Files of ours that it imports, folders apart: a start takes about half a millisecond for each."""


def test_a_plain_compile_imports_what_it_runs() -> None:
    imported = run_python(PLAIN_COMPILE).split()
    useless = [x for x in imported if any(x == y or x.startswith(f"{y}.") for y in FORBIDDEN)]
    assert not useless
    ours = [x for x in imported if x.partition(".")[0].startswith("hloipu")]
    assert len(ours) <= MOST_MODULES


PLAIN_RUN = """
import sys
import numpy as np
import hloipu

text = "HloModule m\\nENTRY e {\\n x = f32[8] parameter(0)\\n ROOT y = f32[8] add(x, x)\\n}"
hloipu.compile(text, target="tiny", cache=False).run(np.ones(8, np.float32))
print(*sys.modules)
"""
RARE = tuple(
    "codelets.dense.fft codelets.indexed.scatter kernels.fft kernels.scatter "
    "simulate.functional.whole_scatters simulate.functional.whole_transforms".split()
)


def test_a_plain_run_loads_nothing_about_rare_codelets() -> None:
    loaded = run_python(PLAIN_RUN).split()
    assert "hloipu_runtime.simulate.functional.logical_form" in loaded
    assert not [x for x in loaded if x.removeprefix("hloipu_runtime.") in RARE]
