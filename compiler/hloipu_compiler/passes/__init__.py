"""Passes: semantics-preserving rewrites of a module and its plan.

    text --pipeline_text--> Pipeline --run_passes--> (module, plan)

`PIPELINES` has the named ones. A pass is registered under its name (`registry`), so that the
command line and a user's file find it.
"""

from hloipu_compiler.errors import PassError
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import passes, register
from hloipu_compiler.passes.pipeline import Group, Pipeline, built
from hloipu_compiler.passes.pipeline_text import read_pipeline
from hloipu_compiler.passes.pipelines import PIPELINES
from hloipu_compiler.passes.runner import PassRun, run_passes

__all__ = [
    "PIPELINES", "Group", "Pass", "PassError", "PassRun", "Pipeline", "built", "passes",
    "read_pipeline", "register", "run_passes",
]  # fmt: skip
