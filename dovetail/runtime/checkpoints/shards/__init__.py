"""Shard files, with index ranges and checksums: the format of local tiers and object stores."""
