"""The named pipelines, and the import of every pass that hloipu brings."""

from hloipu_compiler.passes.algebra.expand_bitcasts import ExpandBitcasts
from hloipu_compiler.passes.algebra.fold_constants import FoldConstants
from hloipu_compiler.passes.algebra.indexing import CompareScattered
from hloipu_compiler.passes.algebra.products import MergeDepth, NarrowProducts
from hloipu_compiler.passes.algebra.repeats import CheapenDivisions, FactorSums
from hloipu_compiler.passes.algebra.simplify_algebra import AbsorbViews, SimplifyAlgebra
from hloipu_compiler.passes.batch_indices import BatchIndices
from hloipu_compiler.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from hloipu_compiler.passes.eliminate_dead_code import EliminateDeadCode
from hloipu_compiler.passes.expand_borders import ExpandBorders
from hloipu_compiler.passes.fusion.fuse_elementwise import FuseElementwise
from hloipu_compiler.passes.fusion.fuse_rows import FuseRows
from hloipu_compiler.passes.fusion.recompute_cheap import RecomputeCheap
from hloipu_compiler.passes.inline_calls import InlineCalls
from hloipu_compiler.passes.loops.simplify_loops import RecogniseLoops, SimplifyLoops, SumAfterLoops
from hloipu_compiler.passes.loops.simplify_tuples import SimplifyTuples
from hloipu_compiler.passes.make_synchronous import MakeSynchronous
from hloipu_compiler.passes.order_for_memory import OrderForMemory
from hloipu_compiler.passes.pipeline import Group, Pipeline, built
from hloipu_compiler.passes.pipeline_text import read_pipeline
from hloipu_compiler.passes.remove_annotations import RemoveBarriers

MOST_ROUNDS = 3
"""Of the simplifications; a fourth has found nothing in any program so far."""

_SIMPLIFY = Group(
    (
        SimplifyTuples(),
        SimplifyLoops(),
        SimplifyAlgebra(),
        FoldConstants(),
        EliminateCommonSubexpressions(),
        EliminateDeadCode(),
    ),
    MOST_ROUNDS,
)

_FRONT = (
    ExpandBitcasts(),
    InlineCalls(),
    MakeSynchronous(),
    ExpandBorders(),
    _SIMPLIFY,
    RemoveBarriers(),
    SimplifyTuples(),
    SumAfterLoops(),
    EliminateDeadCode(),
    RecogniseLoops(),
)

_ABSORB = Group((AbsorbViews(), EliminateDeadCode()), MOST_ROUNDS)

_BACK = (
    BatchIndices(),
    CompareScattered(),
    _ABSORB,
    FactorSums(),
    CheapenDivisions(),
    MergeDepth(),
    NarrowProducts(),
    EliminateDeadCode(),
    FuseElementwise(),
    EliminateDeadCode(),
    FuseRows(),
    EliminateDeadCode(),
    OrderForMemory(),
)

_FRONT_PIPELINE = built(_FRONT)

STAGED = built((RecogniseLoops(), *_BACK), _FRONT_PIPELINE.establishes)
"""What comes after `front` where a step has been cut into calls of stages, which stay."""

BEFORE_BLOCKS = built([_ABSORB])
"""What comes before equal blocks become functions: a reshape at the border of one, as between a
convolution and its norm, is absorbed by nothing any more."""

AFTER_FRONT: dict[str, Pipeline] = {
    "default": STAGED,
    "lean": built((RecogniseLoops(), RecomputeCheap(), *_BACK), _FRONT_PIPELINE.establishes),
}
"""What comes after `front` in the pipelines that begin with it."""

PIPELINES: dict[str, Pipeline] = {
    "simplify": built([_SIMPLIFY]),
    "front": _FRONT_PIPELINE,
    "default": built([*_FRONT, *_BACK]),
    "lean": built([*_FRONT, RecomputeCheap(), *_BACK]),
}
"""Name -> pipeline.

`default` is what compiles: `front`, then fusion. `lean` makes cheap values again in place of
keeping them, for programs that do not fit otherwise. `front` is what stands between the text and
all that asks about tiles: after it nothing calls but loops and branches, which own what they run,
tuples are at their borders only, and the plan says how often loops run.
"""


def before_cut(pipeline: Pipeline | str) -> str:
    """Return what runs before a step is cut: `front`, after what a text has before its last name.

    That of `narrow-floats,default` is `narrow-floats,front`; a text that does not end in `default`
    or `lean` has nothing that a cut step can take. Raises UsageError for what is no pipeline.
    """
    if not isinstance(pipeline, str):
        return "front"
    read_pipeline(pipeline, PIPELINES)
    ahead, _, last = pipeline.rpartition(",")
    return f"{ahead},front" if ahead and last.strip() in AFTER_FRONT else "front"
