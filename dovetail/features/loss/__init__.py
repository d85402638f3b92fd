"""The training loss."""
