"""Networks that were published for IPUs, written in JAX and printed as HLO text."""
