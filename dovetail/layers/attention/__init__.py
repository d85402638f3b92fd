"""Attention: tokens look at each other. What it is made of and what changes it, a file each."""
