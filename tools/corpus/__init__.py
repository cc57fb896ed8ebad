"""Programs in JAX whose HLO makes the corpus, one file per subject."""
