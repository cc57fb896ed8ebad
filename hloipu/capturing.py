"""Capture the HLO modules of a script under XLA's dump flags, ranked by work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hloipu.showing import shown
from hloipu.text import read_file
from hloipu_compiler.analysis.source_lines import SourceLines
from hloipu_compiler.analysis.summary import parameter_rows
from hloipu_compiler.analysis.tally import tally
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.source import Source
from hloipu_runtime.atomic_file import check_writable, replacing
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.watching import each

INDEX = "capture.json"
"""Name of the list of modules in the folder; schema `hloipu.capture/1`."""

_FLAGS = "--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_large_constants"
_OF_TENSORFLOW = re.compile(r"a_inference_(.+?)_\d+__")
"""Modules of functions: their name, a number, and settings of the session."""
_DUMPED = re.compile(r"module_(\d+)\.(.*)\.before_optimizations\.txt")
_WORTH = 10
"""How many times less work than the largest module a training step may do to be chosen. Assumed:
evaluation takes batches larger than training's, but not by more."""
_STOP_SECONDS = 10
"""That a script is given to end after it was asked to; then it is killed."""

# Put on the path of every Python process that the script starts: XLA numbers its dumps from 0 in
# each process, so each needs a folder of its own. A sitecustomize of the user's runs all the same.
_SITECUSTOMIZE = """\
import importlib.machinery
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
if _folder := os.environ.get("HLOIPU_CAPTURE"):
    os.environ["XLA_FLAGS"] = os.environ.get("HLOIPU_CAPTURE_FLAGS", "").format(
        folder=os.path.join(_folder, str(os.getpid()))
    )
_elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _here]
if _spec := importlib.machinery.PathFinder.find_spec("sitecustomize", _elsewhere):
    if _spec.loader is not None:
        with open(_spec.origin, "rb") as _file:
            exec(compile(_file.read(), _spec.origin, "exec"), {"__file__": _spec.origin})
"""


@dataclass(frozen=True, slots=True)
class CapturedModule:
    """One module that a script compiled, as the index and `hloipu capture` list it."""

    file: str
    """Name in the folder of dumps."""
    name: str
    framework: str
    """`JAX`, `TensorFlow`, `PyTorch/XLA`, or empty where the text does not tell."""
    kind: str
    """`training step` where ops of a backward pass are named so, else empty."""
    compiled: int
    """How often a module of this name and signature was compiled; the last text is kept."""
    parameters: int
    state: int
    """Parameters whose memory results take: weights, optimizer state, caches."""
    parameter_bytes: int
    instructions: int
    flops: int
    bytes_moved: int
    exact: bool
    """Whether `flops` is the work of one run; else a lower bound of it, or nothing is known."""
    elided: bool
    """Whether constants were left out of the text (`constant({...})`)."""
    error: str = ""
    """Why the text could not be read."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Modules that a script compiled, the one with the most work first."""

    command: tuple[str, ...]
    folder: str
    exit_code: int
    """Of the script; 128 and the signal's number where a signal ended it."""
    modules: tuple[CapturedModule, ...]

    def record(self) -> dict[str, object]:
        """Return this as JSON data of schema `hloipu.capture/1`."""
        return {"schema": "hloipu.capture/1"} | asdict(self)

    @property
    def chosen(self) -> CapturedModule:
        """The module to go on with: the training step with most work, if it is worth it."""
        first = self.modules[0]
        steps = [
            module
            for module in self.modules
            if module.kind and module.flops * _WORTH >= first.flops
        ]
        return steps[0] if steps else first


def capture(
    command: Sequence[str],
    folder: str | Path,
    *,
    seconds: float | None = None,
    limits: Limits | None = None,
    output_to_stderr: bool = False,
) -> Capture:
    """Run a command, keep the HLO modules that XLA compiled in it, and write the index beside them.

    Texts are those before optimisation, with constants, op names and source lines. XLA writes them
    whichever framework calls it; processes that the command starts are captured too. `seconds`:
    stop the command after so long and take what it had compiled by then; an interrupt does the
    same.

    Raises UsageError E3211 where the folder holds other files, and E3212 where nothing was
    compiled.
    """
    target = Path(folder)
    earlier = _earlier_files(target)
    with tempfile.TemporaryDirectory(prefix="hloipu-capture-") as scratch:
        dumps = Path(scratch).resolve() / "dumps"
        code = _run(command, Path(scratch), dumps, seconds, output_to_stderr)
        texts = _last_of_each(dumps)
        if not texts:
            raise _nothing_compiled(command, code)
        modules = []
        with shown():  # not while the command itself may write
            for path, name, count in each("reading what was compiled", texts, len(texts)):
                modules.append(_described(path, name, count, limits or Limits()))
        order = sorted(range(len(texts)), key=lambda i: _rank(modules[i]))
        modules_kept: list[CapturedModule] = []
        for i in order:
            file = _free_name(texts[i][1], {module.file for module in modules_kept})
            modules_kept.append(replace(modules[i], file=file))
        captured = Capture(tuple(command), str(folder), code, tuple(modules_kept))
        target.mkdir(parents=True, exist_ok=True)
        for name in earlier:
            (target / name).unlink(missing_ok=True)
        with replacing(target / INDEX) as stream:
            stream.write(json.dumps(captured.record(), indent=1).encode())
        for i, module in zip(order, modules_kept, strict=True):
            shutil.move(texts[i][0], target / module.file)
    return captured


def _earlier_files(folder: Path) -> set[str]:
    """Return the files in a folder, all of an earlier capture; none where there is no folder."""
    if not folder.exists():
        check_writable(folder)
        return set()
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise UsageError(
            "E3004",
            f"cannot write to {str(folder)!r}: {error.strerror or error}",
            hint="name a folder of its own for what is captured",
        ) from error
    earlier: set[str] = set()
    with suppress(OSError, ValueError, KeyError, TypeError):
        index = json.loads((folder / INDEX).read_bytes())
        if index["schema"] == "hloipu.capture/1":
            earlier = {INDEX, *(os.path.basename(module["file"]) for module in index["modules"])}
    if foreign_files := sorted(names - earlier):
        raise UsageError(
            "E3211",
            f"{str(folder)!r} holds other files, such as {foreign_files[0]!r}",
            hint="name a new folder, or one of an earlier capture, which is replaced",
        )
    return earlier & names


def _run(
    command: Sequence[str], scratch: Path, dumps: Path, seconds: float | None, to_stderr: bool
) -> int:
    """Run the command until it ends or is stopped; return its exit code."""
    (scratch / "site").mkdir()
    (scratch / "site" / "sitecustomize.py").write_text(_SITECUSTOMIZE, encoding="utf-8")
    dumps.mkdir()
    own_flags = os.environ.get("XLA_FLAGS", "").replace("{", "{{").replace("}", "}}")
    flags = f"{own_flags} {_FLAGS}".strip()  # the last of equal flags counts
    path = os.environ.get("PYTHONPATH")
    environment = os.environ | {
        "HLOIPU_CAPTURE": str(dumps),
        "HLOIPU_CAPTURE_FLAGS": flags,
        "XLA_FLAGS": flags.format(folder=dumps / "0"),  # of a Python that reads no sitecustomize
        "XLA_HLO_DEBUG": "1",  # PyTorch/XLA writes op names and lines
        "JAX_ENABLE_COMPILATION_CACHE": "0",  # what a cache answers is not dumped
        "PYTHONPATH": os.pathsep.join([str(scratch / "site"), *([path] if path else [])]),
    }
    child = subprocess.Popen(list(command), env=environment, stdout=2 if to_stderr else None)
    try:
        child.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as stop:
        # A terminal sends its interrupt to the script as well.
        if isinstance(stop, subprocess.TimeoutExpired):
            child.terminate()
        try:
            child.wait(_STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _last_of_each(dumps: Path) -> list[tuple[Path, str, int]]:
    """Return the last text of each module name and signature, with how often it was compiled.

    The last, because optimizers make their state in the first step of some frameworks.
    """
    texts: dict[tuple[str, str], tuple[Path, str, int]] = {}
    paths = [
        (path.parent.name, int(match[1]), match[2], path)
        for path in dumps.glob("*/module_*.txt")
        if (match := _DUMPED.fullmatch(path.name))
    ]
    for _, _, name, path in sorted(paths):
        with open(path, encoding="utf-8", errors="replace") as stream:
            signature = re.sub(r"^HloModule [^,\n]*", "", stream.readline(1 << 20))
        _, _, count = texts.get((name, signature), (path, name, 0))
        texts[name, signature] = path, name, count + 1
    return list(texts.values())


def _described(path: Path, name: str, compiled: int, limits: Limits) -> CapturedModule:
    """Read a module and count its work; a text that cannot be read says why."""
    try:
        source = read_file(path, limits)
        module = parse(Source(source.text, path.name), limits=limits)
        work = tally(module)
    except HloipuError as error:
        return CapturedModule(
            "",
            name,
            "",
            "",
            compiled,
            0,
            0,
            0,
            0,
            0,
            0,
            False,
            False,
            f"{error.code}: {error.message}",
        )
    rows = parameter_rows(module, SourceLines(module))
    total = work.total
    return CapturedModule(
        file="",
        name=name,
        framework=_framework(source.text),
        kind="training step" if _BACKWARD.search(source.text) else "",
        compiled=compiled,
        parameters=len(rows),
        state=sum(bool(row.role) for row in rows),
        parameter_bytes=sum(byte_count(row.shape) for row in rows),
        instructions=module.instruction_count,
        flops=total.flops,
        bytes_moved=total.bytes_read + total.bytes_written,
        exact=work.exact,
        elided="constant({...})" in source.text,
    )


_BACKWARD = re.compile(
    r'op_name="[^"]*(?:transpose\(jvp\(|gradient_tape/|[Bb]ackward)|op_type="\w*backward'
)


def _framework(text: str) -> str:
    """Guess from op names who wrote a module."""
    if "XLA_Args" in text or "XLA_Retvals" in text:
        return "TensorFlow"
    if "xla__device_data" in text or 'op_type="aten__' in text:
        return "PyTorch/XLA"
    return "JAX" if 'op_name="jit(' in text or "HloModule jit_" in text[:200] else ""


def _rank(module: CapturedModule) -> tuple[bool, int, int, int, str]:
    """Most work first, of equal steps the one with most state; what cannot be read last.

    The first step of an optimizer of PyTorch's makes its state, those that follow replace it.
    """
    work = -module.flops, -module.state, -module.bytes_moved
    return bool(module.error), *work, module.name


def _free_name(name: str, used_names: set[str]) -> str:
    """Return a file name for a module; a number tells signatures of one name apart."""
    called = _OF_TENSORFLOW.match(name)
    plain = re.sub(r"[^\w.-]+", "_", called[1] if called else name)[:100] or "module"
    names = (f"{plain}{'' if number == 1 else f'.{number}'}.hlo" for number in range(1, 1 << 30))
    return next(file for file in names if file not in used_names)


def _nothing_compiled(command: Sequence[str], code: int) -> UsageError:
    shown = shlex.join(command)
    if code:
        return UsageError(
            "E3212",
            f"the command ended with exit code {code} before XLA compiled anything: {shown}",
            hint="see what it printed, and run it without hloipu first",
        )
    return UsageError(
        "E3212",
        f"XLA compiled nothing while this ran: {shown}",
        hint="TensorFlow compiles functions marked jit_compile=True, PyTorch what is on an XLA "
        "device; Python must not run isolated (-I, -E)",
    )
