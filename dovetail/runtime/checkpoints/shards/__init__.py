"""Shards of arrays in files, by index range with checksums: the format of two tiers."""
