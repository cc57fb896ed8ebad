"""Options to a compile request: machine, passes and settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request, shard_request
from hloipu.places import system_ipus
from hloipu.wrapping import wrapping_request
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.on_demand import is_divided
from hloipu_compiler.passes.framework.registry import added_passes_forgotten
from hloipu_compiler.passes.runner import run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.plan.roles import required_wrapping, wrapping_of
from hloipu_compiler.plan.wrapping import looped
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine

_USUAL_SHARE = Options().available_memory_proportion


def compile_request(options: Options) -> CompileRequest:
    """Return what options ask for; `recompute="auto"` is like `none`."""
    machine = machine_of(options)
    return CompileRequest(
        machine,
        pipeline_of(options),
        wrapping_request(options),
        pipeline_request(options),
        shard_request(options),
        options.partition == "auto",
        options.replicas,
        system_ipus(machine, options),
        Tuning(
            options.partials_type,
            round(100 * options.available_memory_proportion),
            hoist=options.hoist,
            code_memory=options.code_memory,
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


@contextmanager
def plugins(options: Options) -> Iterator[None]:
    """Enable the passes of a user's plugin files within the block."""
    with added_passes_forgotten() if options.plugin else nullcontext():
        from hloipu_compiler.passes.framework.plugins import load_plugin

        for plugin in options.plugin:
            load_plugin(plugin)
        yield


def passed(module: Module, options: Options) -> Module:
    """Return a verified module, or that of one partition, after the first passes of compiling."""
    if options.partition == "auto" and is_divided(module):
        from hloipu_compiler.partition.spmd.partitioning import partitioned

        module = partitioned(module).module
    with plugins(options):
        return run_passes(module, Plan(), pipeline_of(options), verify_each=False)[0]


def shown_options(options: Options) -> Mapping[str, Any]:
    """Return the options that shape a program, as reports show them."""
    shown: dict[str, Any] = {
        "target": options.target,
        "code_memory": options.code_memory,
        "over_memory": options.over_memory,
        "recompute": "none" if options.recompute == "auto" else options.recompute,
        "passes": pipeline_of(options),
    }
    if options.opaque:
        shown["opaque"] = dict(options.opaque)
    share = options.available_memory_proportion
    return shown if share == _USUAL_SHARE else {**shown, "available_memory_proportion": share}


def wrapping_lines(module: Module, options: Options) -> list[str]:
    """Return what was made of a step's parameters and results, for people; none for no wrapping.

    Raises UsageError E3150 to E3152 as `wrapping_of` does.
    """
    request = wrapping_request(options)
    if pipeline_request(options).asks:
        return required_wrapping(module, looped(request), feeds_rest=True).lines()
    wrapping = wrapping_of(module, request)
    if wrapping is not None and wrapping.loop and wrapping.results:
        from hloipu_compiler.distributing import is_cut

        if is_cut(module, compile_request(options)):
            wrapping = required_wrapping(module, looped(request))
    return [] if wrapping is None else wrapping.lines()
