"""Dovetail trains large models, plans them, and serves them, from strictly encapsulated parts."""
