"""Loops of Graphcore's encoding as HLO's own loops."""
