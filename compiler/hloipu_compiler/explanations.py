"""Explanations of E-codes, read from `explanations.toml` on demand."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Explanation:
    """One E-code in words: what is wrong, a small wrong text, how to put it right."""

    code: str
    title: str
    meaning: str
    example: str
    cure: str

    def __str__(self) -> str:
        example = "\n".join(f"    {line}" for line in self.example.strip("\n").splitlines())
        return (
            f"{self.code}: {self.title}\n\n{self.meaning.strip()}\n\n"
            f"For example:\n\n{example}\n\nWhat to do: {self.cure.strip()}"
        )


@cache
def _table() -> dict[str, Explanation]:
    import tomllib  # most runs explain nothing

    text = (files("hloipu_compiler") / "explanations.toml").read_text(encoding="utf-8")
    return {
        code: Explanation(code, row["title"], row["meaning"], row["example"], row["cure"])
        for code, row in tomllib.loads(text).items()
    }


def explain(code: str) -> Explanation | None:
    """Return the explanation of a code such as `E0301`, in any case; None where there is none."""
    return _table().get(code.strip().upper())


def all_codes() -> tuple[str, ...]:
    """Return every code that has an explanation, in ascending order."""
    return tuple(sorted(_table()))
