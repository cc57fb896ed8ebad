"""All recipes, and which of them cannot be made here."""

from tools.trainers.large_models import large_models
from tools.trainers.libraries import of_libraries
from tools.trainers.optimizer_chains import chains
from tools.trainers.recipe import Recipe
from tools.trainers.representations import representations
from tools.trainers.several_losses import several_losses
from tools.trainers.uncommon_gradients import uncommon_gradients
from tools.trainers.uncommon_state import uncommon_state


def without_libraries() -> list[Recipe]:
    """Return the recipes that are written in JAX and optax alone."""
    learners = [*several_losses(), *representations()]
    uncommon = [*uncommon_state(), *uncommon_gradients()]
    return [*large_models(), *chains(), *learners, *uncommon]


def recipes() -> tuple[list[Recipe], list[str]]:
    """Return all recipes, and a line for each library that is not there."""
    others, missing = of_libraries()
    return [*without_libraries(), *others], missing
