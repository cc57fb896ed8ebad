"""Evaluation of dot, convolution, FFT, factorisations, solves and batch norm."""

from collections.abc import Callable

from hloipu_compiler.interpret.planning.plan import Action, Array
from hloipu_compiler.interpret.planning.site import Site, lowers
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_runtime.kernels.batch_norm import (
    batch_norm_grad,
    batch_norm_inference,
    batch_norm_training,
)
from hloipu_runtime.kernels.contractions.contraction import DotDimensions
from hloipu_runtime.kernels.contractions.convolution import (
    ConvolutionDimensions,
    ConvolutionWindow,
    convolution,
)
from hloipu_runtime.kernels.contractions.dot import (
    RaggedDotDimensions,
    ScaledOperand,
    dot_general,
    ragged_dot,
    scaled_dot,
)
from hloipu_runtime.kernels.fft import fft
from hloipu_runtime.kernels.linear_algebra.factorisations import cholesky, triangular_solve


def dot_dimensions(site: Site) -> DotDimensions:
    """Return the dimension numbers of a dot."""
    integers = site.attributes.integers
    return DotDimensions(
        integers("lhs_batch_dims"),
        integers("rhs_batch_dims"),
        integers("lhs_contracting_dims"),
        integers("rhs_contracting_dims"),
    )


@lowers("dot")
def _dot(site: Site) -> Action:
    dims, element_type = dot_dimensions(site), site.element_type()
    one_row_dimension = len(site.sizes(0)) - len(dims.lhs_contracting) == 1
    if not dims.lhs_batch and one_row_dimension and _only_transposed(site):
        # Computed as the transpose that its users read, which is then a row-major view.
        mirrored = DotDimensions((), (), dims.rhs_contracting, dims.lhs_contracting)
        return lambda x: (dot_general(x[1], x[0], mirrored, element_type).T,)
    return lambda x: (dot_general(x[0], x[1], dims, element_type),)


def _only_transposed(site: Site) -> bool:
    """Whether the result is a matrix that is read by transposes alone."""
    computation = site.computation
    position = computation.position[site.instruction.name]
    users = computation.users[position]
    return (
        len(site.sizes()) == 2
        and position != computation.root
        and len(users) > 0
        and all(
            (user := computation.instructions[i]).opcode == "transpose"
            and user.attributes.integers("dimensions") == (1, 0)
            for i in users
        )
    )


@lowers("ragged-dot")
def _ragged_dot(site: Site) -> Action:
    groups = site.attributes.integers("rhs_group_dims")
    (ragged,) = site.attributes.integers("lhs_ragged_dims")
    dims = RaggedDotDimensions(dot_dimensions(site), ragged, groups[0] if groups else None)
    element_type = site.element_type()
    return lambda x: (ragged_dot(x[0], x[1], x[2], dims, element_type),)


@lowers("scaled-dot")
def _scaled_dot(site: Site) -> Action:
    dims, element_type = dot_dimensions(site), site.element_type()
    types = [site.element_type(i) for i in range(4)]

    def run(x: list[Array]) -> tuple[Array]:
        lhs = ScaledOperand(x[0], types[0], x[2], types[2])
        rhs = ScaledOperand(x[1], types[1], x[3], types[3])
        return (scaled_dot(lhs, rhs, dims, element_type),)

    return run


def convolution_dimensions(labels: ConvolutionLabels, rank: int) -> ConvolutionDimensions:
    """Return where each dimension stands, from labels such as `b01f_01io->b01f`."""
    spatial = [str(number) for number in range(rank)]
    return ConvolutionDimensions(
        labels.lhs.index("b"),
        labels.lhs.index("f"),
        tuple(map(labels.lhs.index, spatial)),
        labels.rhs.index("i"),
        labels.rhs.index("o"),
        tuple(map(labels.rhs.index, spatial)),
        labels.out.index("b"),
        labels.out.index("f"),
        tuple(map(labels.out.index, spatial)),
    )


@lowers("convolution")
def _convolution(site: Site) -> Action:
    window = site.attributes.window().dimensions
    labels = site.attributes["dim_labels"]
    if not isinstance(labels, ConvolutionLabels):
        raise TypeError("dim_labels is not parsed")
    dims = convolution_dimensions(labels, len(window))
    geometry = ConvolutionWindow(
        tuple(d.stride for d in window),
        tuple((d.pad_low, d.pad_high) for d in window),
        tuple(d.base_dilation for d in window),
        tuple(d.window_dilation for d in window),
        tuple(d.reversal for d in window),
    )
    features = site.attributes.integer("feature_group_count", 1)
    batches = site.attributes.integer("batch_group_count", 1)
    element_type = site.element_type()
    return lambda x: (convolution(x[0], x[1], dims, geometry, element_type, features, batches),)


@lowers("fft")
def _fft(site: Site) -> Action:
    kind, lengths = site.attributes.text("fft_type"), site.attributes.integers("fft_length")
    return lambda x: (fft(x[0], kind, lengths),)


@lowers("cholesky")
def _cholesky(site: Site) -> Action:
    lower, element_type = site.attributes.flag("lower"), site.element_type()
    return lambda x: (cholesky(x[0], lower, element_type),)


@lowers("triangular-solve")
def _triangular_solve(site: Site) -> Action:
    flag = site.attributes.flag
    left, lower, unit = flag("left_side"), flag("lower"), flag("unit_diagonal")
    transpose = site.attributes.text("transpose_a", "NO_TRANSPOSE")
    element_type = site.element_type()
    return lambda x: (
        triangular_solve(
            x[0],
            x[1],
            element_type,
            left_side=left,
            lower=lower,
            unit_diagonal=unit,
            transpose_a=transpose,
        ),
    )


@lowers("batch-norm-training", "batch-norm-inference", "batch-norm-grad")
def _batch_norm(site: Site) -> Action:
    kernel = _BATCH_NORMS[site.instruction.opcode]
    epsilon, feature = site.attributes.number("epsilon"), site.attributes.integer("feature_index")
    element_type = site.element_type()
    return lambda x: kernel(*x, epsilon, feature, element_type)


_BATCH_NORMS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "batch-norm-training": batch_norm_training,
    "batch-norm-inference": lambda *x: (batch_norm_inference(*x),),
    "batch-norm-grad": batch_norm_grad,
}
