"""The HLO text format: reader and printer."""
