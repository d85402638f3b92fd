"""Recurrent layers: sequence mixers with a state of fixed size."""
