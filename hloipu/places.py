"""Which IPUs of a system a program takes: devices by their ids, and the order within them."""

from dataclasses import replace

from hloipu.options.table import Options
from hloipu_compiler.compilation import Compilation
from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.devices import SNAKE, ZIGZAG, in_order, places_of
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program


def system_ipus(machine: Machine, options: Options) -> int:
    """Return the IPUs of the system that a program is to take; 1: as many as it needs.

    MachineError E0554 for ids that name no devices, or others than `ipus`.
    """
    if options.ipu_ids is None:
        return options.ipus
    found = len(places_of(machine, options.ipu_ids))
    if options.ipus not in (1, found):
        ids = ",".join(map(str, options.ipu_ids))
        raise MachineError(
            "E0554",
            f"{options.ipus} IPUs were asked for; devices {ids} have {found}",
            hint="leave --ipus out",
        )
    return found


def in_system(made: Compilation, machine: Machine, options: Options) -> Program:
    """Return the program with the places of its IPUs in the system."""
    program, order = made.program, options.selection_order
    if order == "auto":
        order = SNAKE if _is_chain(made) else ZIGZAG
    inner = in_order(order, program.ipus)
    taken = program.ipus * program.participants
    there = places_of(machine, options.ipu_ids) if options.ipu_ids else tuple(range(taken))
    if len(there) < taken:
        return program  # `check_ipus` refuses it
    places = tuple(
        there[participant * program.ipus + n]
        for participant in range(program.participants)
        for n in inner
    )
    if places == tuple(range(taken)):
        return program
    system = machine.links.system_ipus if options.ipu_ids else taken
    return replace(program, places=places, system_ipus=system)


def _is_chain(made: Compilation) -> bool:
    """Whether stages follow each other from IPU to IPU."""
    stages = made.pipelining.ipus if made.pipelining else ()
    return len(stages) > 1 and stages == tuple((n,) for n in range(len(stages)))
