"""Preparing data: from a corpus to a token store, in parallel, and again after a kill."""

from dovetail.data.preparation.prepare import (
    open_store,
    prepare,
    prepare_store,
    prepare_stores,
    store_folders,
)

__all__ = ["open_store", "prepare", "prepare_store", "prepare_stores", "store_folders"]
