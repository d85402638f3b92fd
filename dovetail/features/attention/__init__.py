"""Attention: heads, scores, masks."""
