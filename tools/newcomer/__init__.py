"""What a new user of each framework meets: a tour in a fresh environment, and ten models."""
