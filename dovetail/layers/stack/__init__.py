"""Blocks of layers, and stacks of blocks."""
