"""Dovetail trains large models, from strictly encapsulated components."""
