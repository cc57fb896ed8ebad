"""What all codelets share: their interface, expressions, and views of parts of tiles."""
