"""Categories of a tile's bytes."""

from enum import Enum

from hloipu_runtime.program.program import Role


class Category(Enum):
    """Use of a byte of a tile's memory."""

    VERTEX_CODE = "vertex code"
    CONTROL_CODE = "control code"
    EXCHANGE_CODE = "exchange code"
    VERTEX_STATE = "vertex state"
    STACKS = "stacks"
    CONSTANTS = "constants"
    STATE = "state"
    PARAMETERS = "parameters"
    TEMPORARIES = "temporaries"
    EXCHANGE_BUFFERS = "exchange buffers"
    ALIGNMENT = "alignment"
    GAPS = "gaps"


CODE = (Category.VERTEX_CODE, Category.CONTROL_CODE, Category.EXCHANGE_CODE)
"""What has to lie in the executable part of the memory; the state of vertices is only read."""
NOT_VARIABLES = (*CODE, Category.VERTEX_STATE, Category.STACKS)
CATEGORY_OF_ROLE = {
    Role.TEMPORARY: Category.TEMPORARIES,
    Role.CONSTANT: Category.CONSTANTS,
    Role.STATE: Category.STATE,
    Role.PARAMETER: Category.PARAMETERS,
    Role.BUFFER: Category.PARAMETERS,
    Role.REMOTE: Category.STATE,
}
