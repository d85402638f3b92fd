"""Recurrent layers: sequence mixers whose memory does not grow with the sequence."""
