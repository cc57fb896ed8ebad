"""The documented exceptions: where `parse` or `verify` differs from XLA on purpose, and why.

`exceptions.toml` beside this file is the one table; `docs/hlo_dialect.md` shows it to readers.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.dialect.judge import ACCEPTED, DIED, Pair

TABLE = Path(__file__).with_name("exceptions.toml")


@dataclass(frozen=True, slots=True)
class DocumentedException:
    """A class of texts on which we differ from XLA, recognised by what either side says."""

    name: str
    stage: str
    """"parse", "verify", "round trip" or "any"."""
    we: str
    """"accept" or "refuse"."""
    reason: str
    xla_says: re.Pattern[str]
    we_say: re.Pattern[str]
    text_has: re.Pattern[str]

    def covers(self, pair: Pair, text: str) -> bool:
        """Whether a disagreement about a text belongs to this class."""
        if pair.ours.outcome == DIED or self.stage not in ("any", pair.stage):
            return False
        we_accept = pair.ours.outcome == ACCEPTED
        return (
            we_accept == (self.we == "accept")
            and self.xla_says.search(pair.xla.said) is not None
            and self.we_say.search(pair.ours.said) is not None
            and self.text_has.search(text) is not None
        )


def read(path: Path = TABLE) -> list[DocumentedException]:
    """Read the table."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["exception"]
    return [
        DocumentedException(
            entry["name"], entry.get("stage", "any"), entry["we"], entry["reason"],
            re.compile(entry.get("xla_says", "")), re.compile(entry.get("we_say", "")),
            re.compile(entry.get("text_has", ""), re.DOTALL),
        )
        for entry in entries
    ]  # fmt: skip
