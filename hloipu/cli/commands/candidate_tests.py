"""Built-in tests of `hloipu reduce`: an error code, or differing values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hloipu.api import compile_settled, module_attributes
from hloipu.check.outputs import compare_outputs, nested, truth_of
from hloipu.check.references import in_f64
from hloipu.check.tiles import Tiles
from hloipu.cli.commands.check import refuse_infeeds
from hloipu.cli.options import Asked
from hloipu.cli.values import given_arguments
from hloipu.encoded import plain_step, with_plain_loops
from hloipu.options.resolve import resolve
from hloipu.options.table import Options
from hloipu_compiler.explanations import all_codes, explain
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.static import require_static
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.memory.does_not_fit import require_fit


@dataclass(frozen=True, slots=True)
class Setup:
    """Options of compiling candidates, and their arguments."""

    asked: Asked
    seed: int
    """Of the arguments that are drawn for each candidate anew."""
    fill: int | None
    """Seed of the values of elided constants."""

    def options(self, module: Module) -> Options:
        """Return the options for a module, whose own attributes count; warnings are not shown."""
        return resolve(
            "reduce",
            self.asked.given,
            place="command line",
            attributes=module_attributes(module),
            config=self.asked.config,
        ).options

    def program(self, module: Module) -> CompiledProgram:
        """Compile a module as `hloipu compile` does, but for the cache."""
        module, _ = plain_step(module, self.asked.given)
        return compile_settled(module, self.options(module))

    def arguments(self, module: Module) -> tuple[Module, list[Array]]:
        """Return the module, its elided constants filled if asked, and arguments for it."""
        return given_arguments(module, None, self.seed, self.fill, EvaluationLimits())


Stage = Callable[[Setup, Module], None]
"""Takes a module as far as an error may come up, and raises it."""


def _verified(_setup: Setup, module: Module) -> None:
    verify(module)


def _static(_setup: Setup, module: Module) -> None:
    require_static(module)


def _estimated(setup: Setup, module: Module) -> None:
    program = setup.program(module)
    program.findings(program.profile())


def _fitted(setup: Setup, module: Module) -> None:
    require_fit(setup.program(module).memory)


def _evaluated(setup: Setup, module: Module) -> None:
    _reference(with_plain_loops(module), setup)


def _ran(setup: Setup, module: Module) -> None:
    _on_tiles(*setup.arguments(with_plain_loops(module)), setup)


STAGES: Mapping[str, Stage] = {
    "verifying it": _verified,
    "checking that its sizes are known": _static,
    "estimating it": _estimated,
    "fitting it into memory": _fitted,
    "evaluating it": _evaluated,
    "running it": _ran,
}
"""In the order in which an error is looked for."""


@dataclass(frozen=True, slots=True)
class ErrorTest:
    """Holds for modules that a stage ends in a certain error for."""

    code: str
    stage: str
    """Key of STAGES."""
    setup: Setup

    @property
    def needs_valid(self) -> bool:
        """Whether candidates must verify before they are tested."""
        return STAGES[self.stage] is not _verified

    def __call__(self, text: str) -> bool:
        """Whether the text still ends in the error."""
        return self.code in codes_of(lambda: STAGES[self.stage](self.setup, parse(text)))


@dataclass(frozen=True, slots=True)
class DiffersTest:
    """Holds for modules whose compiled program gives other values than the evaluator."""

    setup: Setup

    needs_valid = True

    def __call__(self, text: str) -> bool:
        """Whether a result is off by more than `hloipu check` allows."""
        return self.differs(parse(text))

    def differs(self, module: Module) -> bool:
        """Whether a result of a verified module is off; raises what compiling and running do."""
        module, leaves = self.setup.arguments(with_plain_loops(module))
        refuse_infeeds(module)
        ours = _on_tiles(module, leaves, self.setup)
        theirs = evaluate_everywhere(module, *nested(module, leaves))
        truth = truth_of(lambda work: [in_f64(m, arrays) for m, arrays in work], module, leaves)
        return any(not report.agrees for report in compare_outputs(module, ours, theirs, truth))


def _reference(module: Module, setup: Setup) -> list[Array]:
    module, leaves = setup.arguments(module)
    return evaluate_everywhere(module, *nested(module, leaves))


def _on_tiles(module: Module, leaves: list[Array], setup: Setup) -> list[Array]:
    options = setup.options(module)
    program = compile_settled(module, options)
    if program.over_memory != "allow":
        require_fit(program.memory)
    return Tiles(program, options.mode, options.poison).outputs(module, leaves)


def error_test(code: str, module: Module, setup: Setup) -> ErrorTest:
    """Return the test for an error: that of the first stage that ends in it.

    Raises UsageError E3119 for a code that no error has, E3115 where no stage ends in this one.
    """
    wanted = code.upper()
    if explain(wanted) is None:
        raise UsageError(
            "E3119",
            f"no error has the code {code!r}",
            hint=f"hloipu explain lists the {len(all_codes())} there are",
        )
    stage_by_code: dict[str, str] = {}
    for name, stage in STAGES.items():
        try:
            codes = codes_of(lambda: stage(setup, module))  # noqa: B023 - called at once
        except Exception as crash:
            codes = frozenset({type(crash).__name__})
        if wanted in codes:
            return ErrorTest(wanted, name, setup)
        stage_by_code |= {met: name for met in sorted(codes) if met not in stage_by_code}
        if name == "verifying it" and codes:
            break
    stages_text = ", ".join(f"{met} while {name}" for met, name in stage_by_code.items())
    raise UsageError(
        "E3115",
        f"the module does not end in {wanted}" + (f", but in {stages_text}" if stages_text else ""),
        hint="give the same options as to the command that ends in it, such as --target",
    )


def differs_test(module: Module, setup: Setup) -> DiffersTest:
    """Return the test for values that differ; UsageError E3115 where a verified module's do not.

    Raises what compiling and running the module do: then there are no values to compare.
    """
    differing = DiffersTest(setup)
    if not differing.differs(module):
        raise UsageError(
            "E3115",
            "the module has the same values compiled as evaluated op by op",
            hint="give the options of the command that shows other values, and its --random SEED; "
            "for kernels that both are wrong in use "
            "--test 'sh -c \"hloipu check {}; test $? = 6\"'",
        )
    return differing


def codes_of(action: Callable[[], Any]) -> frozenset[str]:
    """Return the codes of the error that something ends in, of all of its faults; none if well."""
    try:
        action()
    except HloipuError as error:
        faults = {getattr(fault, "code", error.code) for fault in getattr(error, "faults", ())}
        return frozenset({error.code, *faults})
    return frozenset()
