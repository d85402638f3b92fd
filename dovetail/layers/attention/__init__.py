"""Attention layers, their KV caches, and variants of scores and mixing."""
