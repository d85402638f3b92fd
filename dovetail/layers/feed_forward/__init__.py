"""Feed-forwards: maps of each token alone."""
