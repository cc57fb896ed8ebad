"""All recipes, and which of them cannot be made here."""

from tools.trainers.large_models import large_models
from tools.trainers.libraries import of_libraries
from tools.trainers.optimizer_chains import chains
from tools.trainers.recipe import Recipe
from tools.trainers.representations import representations
from tools.trainers.several_losses import several_losses
from tools.trainers.uncommon_steps import uncommon_steps


def without_libraries() -> list[Recipe]:
    """Return the recipes that are written in JAX and optax alone."""
    learners = [*several_losses(), *representations(), *uncommon_steps()]
    return [*large_models(), *chains(), *learners]


def recipes() -> tuple[list[Recipe], list[str]]:
    """Return all recipes, and a line for each library that is not there."""
    others, missing = of_libraries()
    return [*without_libraries(), *others], missing
