"""What a custom call computes, written as ops of HLO: the registry, and the writing."""
