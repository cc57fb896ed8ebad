"""Sweep points to jobs: resolve options, find equal compiles, write commands."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from hloipu.api import module_attributes
from hloipu.encoded import plain_step
from hloipu.options.resolve import resolve
from hloipu.options.table import OPTIONS, Options
from hloipu.sweeping.axes import AS_WRITTEN, BATCH, DEFAULT, DTYPE, FILE, options_at
from hloipu.sweeping.jobs import Job, fingerprint
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.syntax.limits import Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.passes.smaller_batch import batch_of, batch_size
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import F32
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.load import load_machine

_NOT_OF_ESTIMATES = frozenset(
    "target set mode cache cache_dir cache_size_bytes poison seed max_iterations synthetic_data "
    "over_memory fast".split()
)
"""Options under which the same is estimated; the machine's numbers stand for the first two."""


class Compile(NamedTuple):
    """The compile of a point, or the error of one that cannot begin."""

    key: str
    command: str
    job: Job | None
    error: HloipuError | None = None


@dataclass(frozen=True, slots=True)
class SweptModule:
    """A module of a sweep, as the client knows it."""

    name: str
    """A path, or `<text>` and the like for what is in no file."""
    text: str
    digest: str
    attributes: Mapping[str, str]
    """It states options in them."""
    batch: int
    """Samples, where a sweep asks for it; 0: none can be told."""
    has_f32: bool

    @property
    def is_file(self) -> bool:
        """Whether a command can name it."""
        return not self.name.startswith("<")


def swept_module(
    source: Source, shared_options: Mapping[str, Any], limits: Limits, *, wants_batch: bool
) -> SweptModule:
    """Read and verify a module; raises what `hloipu.verify` raises."""
    module = parse(source, limits=limits)
    verify(module)
    data = source.text.encode("utf-8", errors="surrogateescape")
    return SweptModule(
        source.name,
        source.text,
        hashlib.sha256(data).hexdigest(),
        module_attributes(plain_step(module, shared_options)[0]),
        _batch(module) if wants_batch else 0,
        _has_f32(module),
    )


def _batch(module: Module) -> int:
    front, _ = run_passes(module, None, "front")
    return batch_size(front, batch_of(front))


def _has_f32(module: Module) -> bool:
    return any(
        isinstance(leaf, ArrayShape) and leaf.element_type is F32
        for computation in module.computations
        for op in computation.instructions
        for _, leaf in leaves(op.shape)
    )


class Compiles:
    """Makes the compiles of a sweep's points."""

    def __init__(
        self,
        modules: Sequence[SweptModule],
        shared_options: Mapping[str, Any],
        config: str | None,
        seconds: float | None,
        study: str,
    ) -> None:
        self._modules = {module.name: module for module in modules}
        self._given = dict(shared_options)
        self._config = config
        self._seconds = seconds
        self._study = study
        self._fingerprint = fingerprint()

    def of(self, point: Mapping[str, str]) -> Compile:
        """Return the compile of a point."""
        module = self._modules[point.get(FILE, next(iter(self._modules)))]
        rewrite = _passes(point)
        try:
            rewrite = rewrite_of(module, point)
            options_of_point = options_at(self._given, point)
            # Programs that are looked at once are not worth keeping, unless somebody says so.
            resolved = resolve(
                "estimate",
                {"cache": False, **options_of_point},
                attributes=module.attributes,
                config=self._config,
            )
            options = resolved.options
            key = self._key(module, rewrite, options)
        except HloipuError as error:
            point_text = repr(sorted(point.items())).encode()
            key = f"refused-{hashlib.sha256(point_text).hexdigest()}"
            return Compile(key, self._command(module, rewrite, point), None, error)
        usual = Options()
        option_values = {name: getattr(options, name) for name in OPTIONS}
        changed = {k: v for k, v in option_values.items() if v != getattr(usual, k)}
        command = self._command(module, rewrite, point)
        batch = int(point[BATCH]) if point.get(BATCH, DEFAULT) != DEFAULT else module.batch
        return Compile(
            key, command, Job(key, module.digest, rewrite, changed, batch, self._seconds)
        )

    def _key(self, module: SweptModule, rewrite: str, options: Options) -> str:
        names = [name for name in OPTIONS if name not in _NOT_OF_ESTIMATES]
        option_values = {name: getattr(options, name) for name in names}
        # Where a number is from does not matter, nor what the machine is called.
        numbers = _numbers(options.target, options.set)
        facts = [module.digest, rewrite, option_values, numbers, self._seconds, self._fingerprint]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _command(self, module: SweptModule, passes: str, point: Mapping[str, str]) -> str:
        file = module.name if module.is_file else "-"
        source = ""
        if not module.is_file:
            text = ["hloipu", "sweep-show", self._study, "--module", module.digest[:12]]
            source = f"{shlex.join(text)} | "
        if passes:
            source += f"{shlex.join(['hloipu', 'opt', file, '--passes', passes])} | "
            file = "-"
        try:
            options_of_point = options_at(self._given, point)
        except HloipuError:  # the row says so itself
            options_of_point = {**self._given, **{k: v for k, v in point.items() if k in OPTIONS}}
        config = ["--config", self._config] if self._config else []
        return source + shlex.join(["hloipu", "estimate", file, *_words(options_of_point), *config])


@lru_cache(maxsize=256)
def _numbers(target: str, changed: tuple[tuple[str, str], ...]) -> list[tuple[str, int]]:
    return [(x.key, x.value) for x in load_machine(target, dict(changed)).numbers()]


def rewrite_of(module: SweptModule, point: Mapping[str, str]) -> str:
    """Return the passes that a point has rewrite its module; what changes nothing is left out.

    Raises UsageError E3195 for a type that the module has no floats for, E1011 for a batch where
    it has none.
    """
    batch, dtype = point.get(BATCH, DEFAULT), point.get(DTYPE, DEFAULT)
    if dtype != DEFAULT and not module.has_f32:
        raise UsageError(
            "E3195",
            f"{module.name} has no f32 that could be {dtype}",
            hint=f"leave {DTYPE} out, or give it the module in f32",
        )
    if batch != DEFAULT and not module.batch:
        raise UsageError(
            "E1011",
            f"{module.name} has no dimension that is recognised as the batch",
            hint="lower the model with each batch, and sweep over the files",
        )
    unchanged = {BATCH: str(module.batch), DTYPE: AS_WRITTEN}
    return _passes({k: v for k, v in point.items() if unchanged.get(k) != v})


def _passes(point: Mapping[str, str]) -> str:
    batch, dtype = point.get(BATCH, DEFAULT), point.get(DTYPE, DEFAULT)
    passes = []
    if batch != DEFAULT:
        passes.append(f"front,scaled-batch{{to={batch}}}")
    if dtype not in (DEFAULT, AS_WRITTEN):
        passes.append(f"narrow-floats{{to={dtype}}}")
    return ",".join(passes)


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is None or value is None:
            continue
        if isinstance(value, bool):
            words.append(option.flag if value else option.flag.replace("--", "--no-", 1))
        elif option.kind.repeatable:
            parts: Any = option.kind.check(value) or ()
            for part in parts:
                words += [option.flag, option.kind.write((part,))]
        else:
            words += [option.flag, option.kind.write(value)]
    return words
