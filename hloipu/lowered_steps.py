"""Steps of frameworks as HLO text, with the names and values of its parameters."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hloipu.training.programs import DATA, Metrics, StepInput
from hloipu.training.trainer import Trainer
from hloipu_runtime.errors import UsageError

_PARAMETER = re.compile(r" parameter\((\d+)\)")
_METADATA = re.compile(r", metadata=\{[^{}]*\}")


@dataclass(frozen=True)
class LoweredStep:
    """A step as HLO text; its parameters are numbered as in the text."""

    text: str = field(repr=False)
    names: tuple[str, ...]
    """Of the parameters: those of variables, modules and arguments."""
    arguments: tuple[np.ndarray[Any, Any], ...] = field(repr=False)
    """The values of all parameters when the step was lowered."""
    fed: tuple[int, ...]
    """The parameters that are the step's arguments: a batch."""
    kept: tuple[int, ...]
    """The parameters that results replace: weights, optimizer state, statistics."""
    assign: Callable[[Mapping[str, Any]], None] = field(repr=False)
    """Gives the framework's own variables the values of a state by name."""

    @property
    def state(self) -> dict[int, Any]:
        """The values of what the step replaces, by number, as sessions and trainers take them."""
        return {number: self.arguments[number] for number in self.kept}

    @property
    def constants(self) -> dict[int, Any]:
        """The values of what is neither replaced nor fed, such as a learning rate, by number."""
        constant_numbers = set(range(len(self.names))) - {*self.kept, *self.fed}
        return {number: self.arguments[number] for number in sorted(constant_numbers)}

    @property
    def feeds(self) -> dict[str, tuple[int, ...]]:
        """One queue of the step's arguments."""
        return {DATA: self.fed} if self.fed else {}

    def trainer(
        self,
        *,
        metrics: Metrics | None = None,
        evaluation: StepInput | None = None,
        prediction: StepInput | None = None,
        **options: Any,
    ) -> Trainer:
        """Return a trainer of this step, from the state that it has; raises what `Trainer` does."""
        return Trainer(
            self.text, state=self.state, constants=self.constants, feeds=self.feeds,
            metrics=metrics, evaluation=evaluation, prediction=prediction, **options,
        )  # fmt: skip


def printed(serialized: bytes) -> str:
    """Return a serialized HloModuleProto as text, with constants, op names and lines.

    Raises UsageError E3174 without jaxlib: TensorFlow prints no constants, PyTorch/XLA no lines.
    """
    try:
        from jaxlib import _hlo
    except ImportError as error:
        raise UsageError(
            "E3174",
            "jaxlib is not installed, or is older than 0.10: it prints what others lower",
            hint="pip install 'hloipu[jax]'",
        ) from error
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    module = _hlo.HloModule.from_serialized_hlo_module_proto(serialized)
    return str(module.to_string(options))


def with_names(text: str, names: Sequence[str]) -> str:
    """Return HLO text whose entry's parameters say in their metadata what they are called."""
    head, entry, body = text.rpartition("\nENTRY ")
    lines = body.split("\n")
    for at, line in enumerate(lines):
        match = _PARAMETER.search(line)
        if match and int(match[1]) < len(names):
            name = names[int(match[1])].replace("\\", "\\\\").replace('"', '\\"')
            lines[at] = f'{_METADATA.sub("", line)}, metadata={{op_name="{name}"}}'
    return head + entry + "\n".join(lines)


def with_aliases(text: str, pairs: Mapping[int, int]) -> str:
    """Return HLO text whose header says which result takes the place of which parameter."""
    aliases = ", ".join(f"{{{result}}}: ({n}, {{}}, must-alias)" for result, n in pairs.items())
    return re.sub(
        r"^(HloModule [^,\n]+)",
        rf"\1, input_output_alias={{ {aliases} }}" if aliases else r"\1",
        text,
    )
