"""What `parse` and `verify` accept, compared with XLA's parser and HLO verifier."""
