"""All recipes, and which of them cannot be made here."""

from tools.trainers.optimizer_chains import chains
from tools.trainers.recipe import Recipe


def recipes() -> tuple[list[Recipe], list[str]]:
    """Return all recipes, and a line for each library that is not there."""
    found, missing = [*chains()], list[str]()
    return found, missing
