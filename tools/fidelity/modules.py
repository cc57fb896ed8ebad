"""HLO modules of what was measured."""


def matrix_product(rows: int, depth: int, columns: int, element_type: str) -> str:
    """Return a module that multiplies two matrices."""
    t = element_type
    return f"""HloModule product
ENTRY main {{
  a = {t}[{rows},{depth}] parameter(0)
  b = {t}[{depth},{columns}] parameter(1)
  ROOT c = {t}[{rows},{columns}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


def triad(elements: int, element_type: str) -> str:
    """Return a module that computes b + s * c of long vectors."""
    t = element_type
    return f"""HloModule triad
ENTRY main {{
  b = {t}[{elements}] parameter(0)
  c = {t}[{elements}] parameter(1)
  s = {t}[] parameter(2)
  spread = {t}[{elements}] broadcast(s), dimensions={{}}
  scaled = {t}[{elements}] multiply(spread, c)
  ROOT a = {t}[{elements}] add(b, scaled)
}}
"""


def repeated_convolution(
    height: int, width: int, element_type: str, turns: int, *, groups: int = 1
) -> str:
    """Return a module that convolves an image of 4 channels by 3x3 again and again.

    Each result is the next image, in the layout of the first one. With 4 groups, each channel is
    convolved for itself.
    """
    image = f"{element_type}[1,{height},{width},4]"
    kernel = f"{element_type}[3,3,{4 // groups},4]"
    state = f"(s32[], {image}, {kernel})"
    window = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    grouped = f", feature_group_count={groups}" if groups > 1 else ""
    return f"""HloModule convolutions
goes_on {{
  state = {state} parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant({turns})
  ROOT less = pred[] compare(i, n), direction=LT
}}
turn {{
  state = {state} parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = {image} get-tuple-element(state), index=1
  k = {kernel} get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = {image} convolution(x, k), {window}{grouped}
  ROOT result = {state} tuple(next, y, k)
}}
ENTRY main {{
  x = {image} parameter(0)
  k = {kernel} parameter(1)
  zero = s32[] constant(0)
  start = {state} tuple(zero, x, k)
  end = {state} while(start), condition=goes_on, body=turn
  ROOT y = {image} get-tuple-element(end), index=1
}}
"""


def attention(heads: int, length: int, size: int, element_type: str) -> str:
    """Return a module of scaled scores, their softmax and the values they weigh."""
    t = element_type
    operand, scores = f"{t}[{heads},{length},{size}]", f"{t}[{heads},{length},{length}]"
    sums = f"{t}[{heads},{length}]"
    inner = "lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    heads_apart = "lhs_batch_dims={0}, rhs_batch_dims={0}"
    return f"""HloModule attention
largest {{
  a = {t}[] parameter(0)
  b = {t}[] parameter(1)
  ROOT c = {t}[] maximum(a, b)
}}
sum {{
  a = {t}[] parameter(0)
  b = {t}[] parameter(1)
  ROOT c = {t}[] add(a, b)
}}
ENTRY main {{
  q = {operand} parameter(0)
  k = {operand} parameter(1)
  v = {operand} parameter(2)
  s = {scores} dot(q, k), {heads_apart}, lhs_contracting_dims={{2}}, rhs_contracting_dims={{2}}
  low = {t}[] constant(-inf)
  zero = {t}[] constant(0)
  top = {sums} reduce(s, low), dimensions={{2}}, to_apply=largest
  tops = {scores} broadcast(top), dimensions={{0,1}}
  less = {scores} subtract(s, tops)
  e = {scores} exponential(less)
  z = {sums} reduce(e, zero), dimensions={{2}}, to_apply=sum
  zs = {scores} broadcast(z), dimensions={{0,1}}
  p = {scores} divide(e, zs)
  ROOT o = {operand} dot(p, v), {heads_apart}, {inner}
}}
"""
