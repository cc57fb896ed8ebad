"""Our answer and XLA's answer about one text, and whether they agree."""

from collections.abc import Callable
from dataclasses import dataclass

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError, LimitError
from tests.support.xla_oracle import Verdict

ACCEPTED, REFUSED, DIED = "accepted", "refused", "died"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one side did at one stage: accepted, refused or died, and what it said."""

    outcome: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and XLA's answers at a stage ("parse" or "verify")."""

    stage: str
    ours: Answer
    xla: Answer

    @property
    def agree(self) -> bool:
        """Whether both do the same; a text on which XLA dies we must refuse, at either stage."""
        if self.xla.outcome == DIED:
            return self.ours.outcome == REFUSED
        return self.ours.outcome == self.xla.outcome


def ours(text: str) -> tuple[Answer, Answer | None, Module | None]:
    """Return our answers at parse and verify (None where it came to no module)."""
    module, at_parse = _attempt(lambda: parse(text))
    if module is None:
        return at_parse, None, None
    _, at_verify = _attempt(lambda: _verified(module))
    return at_parse, at_verify, module


def _verified(module: Module) -> Module:
    verify(module)
    return module


def _attempt(run: Callable[[], Module]) -> tuple[Module | None, Answer]:
    try:
        return run(), Answer(ACCEPTED)
    except LimitError as error:
        return None, Answer(REFUSED, f"limit [{error.code}]: {error.message}")
    except HloipuError as error:
        return None, Answer(REFUSED, f"[{error.code}]: {error.message}")
    except Exception as error:  # the point of the tool: our own failures are counted, not raised
        return None, Answer(DIED, f"{type(error).__name__}: {error}")


def theirs(verdict: Verdict) -> tuple[Answer, Answer | None]:
    """Return XLA's answers at parse and verify from its verifier's verdict."""
    said = " ".join(verdict.message.split())
    if verdict.status in ("crashed", "hung"):
        return Answer(DIED, said), None
    if verdict.status == "unparsed":
        return Answer(REFUSED, said), None
    if verdict.status == "refused":
        return Answer(ACCEPTED), Answer(REFUSED, said)
    return Answer(ACCEPTED), Answer(ACCEPTED)


def pairs(
    our_parse: Answer, our_verify: Answer | None, verdict: Verdict, *, crashed_in_parser: bool
) -> list[Pair]:
    """Compare stage by stage; verify is compared where both sides parsed the text."""
    xla_parse, xla_verify = theirs(verdict)
    if xla_parse.outcome == DIED:
        # Where XLA dies a refusal at either stage is right.
        last = our_verify if our_parse.outcome == ACCEPTED and our_verify else our_parse
        return [Pair("parse" if crashed_in_parser else "verify", last, xla_parse)]
    if our_parse.outcome == REFUSED and xla_verify and xla_verify.outcome == REFUSED:
        xla_parse = Answer(ACCEPTED, f"its verifier: {xla_verify.said}")
    if xla_parse.outcome == REFUSED and our_verify and our_verify.outcome == REFUSED:
        our_parse = Answer(ACCEPTED, f"our verifier: {our_verify.said}")
    compared = [Pair("parse", our_parse, xla_parse)]
    if our_verify is not None and xla_verify is not None:
        compared.append(Pair("verify", our_verify, xla_verify))
    return compared
