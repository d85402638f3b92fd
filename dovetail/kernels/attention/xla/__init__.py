"""Attention in XLA operations: any mask, score map, bias or activation, on any platform."""
