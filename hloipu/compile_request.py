"""From options to what a module is compiled for."""

from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request, shard_request
from hloipu.places import system_ipus
from hloipu.wrapping import wrapping_request
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine


def compile_request(options: Options, *, weighs_code: bool = False) -> CompileRequest:
    """Return what options ask for; `recompute="auto"` is like `none`.

    `weighs_code`: whether code of loops, branches and stages counts, as where a program lacks room.
    """
    machine = machine_of(options)
    return CompileRequest(
        machine,
        pipeline_of(options),
        wrapping_request(options),
        pipeline_request(options),
        shard_request(options),
        options.replicas,
        system_ipus(machine, options),
        Tuning(
            options.partials_type,
            round(100 * options.available_memory_proportion),
            hoist=options.hoist,
            code_memory=options.code_memory,
            counts_called_code=weighs_code,
            random_bits=options.random_bits,
        ),
        options.outline == "on",
    )


def machine_of(options: Options) -> Machine:
    """Return the machine that options ask for."""
    return load_machine(options.target, dict(options.set))


def pipeline_of(options: Options) -> str:
    """Return the passes that options ask for."""
    return options.passes or ("lean" if options.recompute == "cheap" else "default")
