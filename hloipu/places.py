"""Physical IPUs of a program: device ids, and the order within them."""

from dataclasses import replace

from hloipu.options.table import Options
from hloipu_compiler.compilation import Compilation
from hloipu_runtime.errors import MachineError, UnsupportedError
from hloipu_runtime.machine.devices import SNAKE, ZIGZAG, in_order, ipus_along_links, places_of
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program


def system_ipus(machine: Machine, options: Options) -> int:
    """Return the IPUs of the system that a program is to take; 1: as many as it needs.

    MachineError E0554 for ids that name no devices, or others than `ipus`.
    """
    if options.ipu_ids is None:
        return options.ipus
    count = len(places_of(machine, options.ipu_ids))
    if options.ipus not in (1, count):
        ids = ",".join(map(str, options.ipu_ids))
        raise MachineError(
            "E0554",
            f"{options.ipus} IPUs were asked for; devices {ids} have {count}",
            hint="leave --ipus out",
        )
    return count


def taken_ipus(compilation: Compilation) -> int:
    """Return the IPUs that a program takes, with those that a device map leaves out."""
    program, cut = compilation.program, compilation.pipelining
    return (cut.span if cut and cut.numbers else program.ipus) * program.participants


def taken_lines(program: Program, machine: Machine, options: Options) -> list[str]:
    """Return which IPUs of a system a program takes, for people, where something says which.

    A program with 64 IPUs or more tells those of its first and last copy.
    """
    ipu_count = program.ipus * program.participants
    if not program.places and not options.ipu_ids:
        return []
    places = program.places or tuple(range(ipu_count))
    along = ipus_along_links(machine)
    numbers = [along[place] for place in places] if options.ipu_ids else places
    copies = [
        ",".join(map(str, numbers[first : first + program.ipus]))
        for first in range(0, ipu_count, program.ipus)
    ]
    if ipu_count >= _MANY_IPUS and len(copies) > 2:
        copies = [copies[0], "…", copies[-1]]
    ids = [str(number) for number in options.ipu_ids or ()]
    on = f" (device{'s'[: len(ids) > 1]} {','.join(ids)} of a system of {len(along)})"
    return [f"takes IPU{'s'[: ipu_count > 1]} {' | '.join(copies)}{on if ids else ''}"]


_MANY_IPUS = 64


def in_system(compilation: Compilation, machine: Machine, options: Options) -> Program:
    """Return the program with the places of its IPUs in the system."""
    program, order, cut = compilation.program, options.selection_order, compilation.pipelining
    if order == "auto":
        order = SNAKE if _is_chain(compilation) else ZIGZAG
    ipu_count, span = taken_ipus(compilation), taken_ipus(compilation) // program.participants
    used = cut.numbers if cut is not None and cut.numbers else range(program.ipus)
    inner = [in_order(order, span)[n] for n in used]
    system_places = (
        places_of(machine, options.ipu_ids) if options.ipu_ids else tuple(range(ipu_count))
    )
    if len(system_places) < ipu_count:
        return program  # `check_ipus` refuses it
    places = tuple(
        system_places[participant * span + n]
        for participant in range(program.participants)
        for n in inner
    )
    if places == tuple(range(program.ipus * program.participants)):
        return program
    system = machine.links.system_ipus if options.ipu_ids else ipu_count
    return replace(program, places=places, system_ipus=system)


def with_hosts(program: Program, options: Options) -> Program:
    """Return the program with the hosts that feed its replicas.

    UnsupportedError E0556 where they do not divide them.
    """
    if options.hosts is None:
        return program
    placed = replace(program, hosts=options.hosts)
    if not placed.has_hosts:
        raise UnsupportedError(
            "E0556",
            f"{options.hosts} hosts were asked for; the program has {program.replicas} replica"
            f"{'s'[: program.replicas > 1]}, of which each host feeds as many",
            hint="ask for replicas (--replicas R, --ipus N) that the hosts divide",
        )
    return placed


def _is_chain(compilation: Compilation) -> bool:
    stages = (
        compilation.pipelining.ipus
        if compilation.pipelining and not compilation.pipelining.numbers
        else ()
    )
    return len(stages) > 1 and stages == tuple((n,) for n in range(len(stages)))
