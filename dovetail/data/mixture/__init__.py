"""Mixtures: batches with rows from several sources, in exact shares."""
