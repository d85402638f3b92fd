"""Transformer blocks, and stacks of layers."""
