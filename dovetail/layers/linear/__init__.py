"""Linear maps, and what wraps them."""
