"""HLO text in, a verified graph and a placed program out."""
