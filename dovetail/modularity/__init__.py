"""Modularity, measured: what a feature costs in a code base, ours or another."""
