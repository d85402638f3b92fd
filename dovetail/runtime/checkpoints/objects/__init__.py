"""Checkpoints in an object store, such as S3 or Google Cloud Storage."""
