"""Checkpoints: saved in the background, verified, and committed by a manifest."""
