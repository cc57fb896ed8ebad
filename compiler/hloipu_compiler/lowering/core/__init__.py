"""What all lowerings use: the builder, values, exchanges, remote memory."""
