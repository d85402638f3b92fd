"""Preparing data: from a corpus to a token store, in parallel, and again after a kill."""

from dovetail.data.preparation.prepare import open_store, prepare, prepare_store, store_folder

__all__ = ["open_store", "prepare", "prepare_store", "store_folder"]
