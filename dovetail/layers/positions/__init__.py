"""Positions: how tokens know where they stand."""
