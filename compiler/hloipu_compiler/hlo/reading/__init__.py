"""Reader of HLO text."""
