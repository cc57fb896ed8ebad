"""Converts loops of Graphcore's encoding to HLO's own loops."""
