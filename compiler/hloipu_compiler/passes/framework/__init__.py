"""What a pass is, and what all passes use."""
