"""Shape inference and checking: one rule per opcode, gathered in `inference.rules`.

The rules accept and refuse what openxla/xla `xla/service/shape_inference.cc` and
`xla/service/hlo_verifier.cc` do (layouts ignored, no mixed precision), with these exceptions.

Accepted here, though XLA's process ends: all-gather and reduce-scatter of size 0. Accepted, because
old dumps have them: infeed, outfeed, send and recv without tokens, sort without a comparator.
Accepted: a scaled-dot without a result shape, which XLA infers from the wrong operands; an
opt-barrier without one.

Refused here: a bitcast that changes the number of bytes; dimensions of gather and scatter that are
both collapsed (inserted) and batching; a mean or variance of batch-norm-inference that is not of
rank 1; a negative dimension of sort; a negative k of topk; a result shape of add-dependency,
after-all, infeed, outfeed, send and recv and their dones that is not the operation's, which XLA's
parser overwrites. Refused, though XLA's process ends: windows over negative sizes, sums of formats
without a wider one (f8e5m2 and f8e5m2fnuz), sizes beyond 63 bits.
"""
