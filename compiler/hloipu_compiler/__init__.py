"""HLO text in, a verified graph and (later floors) a placed program out."""
