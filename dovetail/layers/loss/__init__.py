"""Token losses."""
