"""References: XLA:CPU, our evaluator in f64, a file of known results."""

from collections.abc import Sequence
from typing import Self

from hloipu.check.outputs import nested
from hloipu.check.time_limit import TimeUpError
from hloipu.inputs import as_user_dtype, stored_arrays
from hloipu.xla_cpu.runner import XlaCpu
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened, widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import HloipuError, UnsupportedError, UsageError
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.nearest import did_you_mean
from hloipu_runtime.plain_text import printable

XLA_CPU, EVALUATOR_F64 = "xla-cpu", "evaluator-f64"
_WORDS = 300
"""Characters of a reference's own words that are passed on."""


class Against:
    """The reference of a name; called, it computes modules as `check_outputs.Reference` does.

    Where the name is a file's, XLA:CPU computes what the file does not hold. Use it as a context.
    Raises UsageError E3111 for a name that is none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_file: bool = name.endswith(".npz")
        self._xla: XlaCpu | None = None
        if name not in (XLA_CPU, EVALUATOR_F64) and not self.is_file:
            raise UsageError(
                "E3111",
                f"there is no reference {name!r}",
                hint=did_you_mean(
                    name, (XLA_CPU, EVALUATOR_F64), "give xla-cpu, evaluator-f64, or an .npz file"
                ),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._xla is not None:
            self._xla.close()

    def __call__(self, work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        """Compute modules on leaves of arguments; for each the result's leaves, or why not.

        Raises UnsupportedError E0460 where XLA:CPU is not installed, E0465 where it hangs.
        """
        if self.name == EVALUATOR_F64:
            return [in_f64(module, leaves) for module, leaves in work]
        self._xla = self._xla or XlaCpu()
        return self._xla(work)

    def needed(self, module: Module, leaves: Sequence[Array]) -> list[Array]:
        """Return the result of a module; UnsupportedError E0461 where it cannot be computed."""
        (answer,) = self([(module, leaves)])
        if not isinstance(answer, str):
            return answer
        raise self.refused(module, leaves, answer)

    def refused(self, module: Module, leaves: Sequence[Array], words: str) -> UnsupportedError:
        """Return the error E0461 of a module that this reference cannot compute, in its words.

        What the hint names was tried before, so that it is no idle advice.
        """
        known = "give known results: --against FILE.npz, which holds out_0, out_1, …"
        other_reference = XLA_CPU if self.name == EVALUATOR_F64 else EVALUATOR_F64
        if _computes(other_reference, module, leaves):
            known = f"compare with --against {other_reference}, or {known}"
        words_shown = printable(" ".join(words.split())[:_WORDS])
        return UnsupportedError(
            "E0461",
            f"{self.name} could not compute {printable(module.name)!r}: {words_shown}",
            hint=known,
        )


def _computes(name: str, module: Module, leaves: Sequence[Array]) -> bool:
    with Against(name) as reference:
        try:
            return not isinstance(reference([(module, leaves)])[0], str)
        except HloipuError as error:
            if isinstance(error, TimeUpError):
                raise
            return False


def in_f64(module: Module, leaves: Sequence[Array]) -> list[Array] | str:
    """Compute a module in f64 and round its result to the module's own types, or say why not."""
    wide = widened(module)
    try:
        results = evaluate_everywhere(wide, *nested(wide, widened_arguments(leaves)))
    except TimeUpError:
        raise
    except HloipuError as error:
        return error.message
    types = [leaf.element_type for leaf in array_leaves(module.entry.program_shape.result)]
    return [
        result if t.is_float or t.is_complex else as_user_dtype(result, t.name)
        for result, t in zip(results, types, strict=True)
    ]


def load_outputs(path: str, module: Module) -> list[Array]:
    """Read a reference result from an .npz file; UsageError where it is not one of this module."""
    leaves = array_leaves(module.entry.program_shape.result)
    outputs = []
    with stored_arrays(path) as stored:
        for number, leaf in enumerate(leaves):
            if f"out_{number}" not in stored.names:
                raise UsageError(
                    "E3107",
                    f"{path}: no array out_{number}, the module makes {len(leaves)}",
                    hint="hloipu eval -o writes such a file",
                )
            array = stored.leaf(f"out_{number}", leaf, f"{path}: out_{number}", "E3109")
            if array.shape != leaf.dimensions or array.dtype != user_dtype(leaf.element_type.name):
                raise UsageError(
                    "E3109",
                    f"{path}: out_{number} is {array.dtype}{list(array.shape)}, the module makes "
                    f"{leaf.without_layout()}",
                    hint="compare with results of this module",
                )
            outputs.append(array)
    return outputs
