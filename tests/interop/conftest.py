"""A family to import and export in every test of this folder."""

import pytest

from dovetail.models import ModelFamily
from tests.interop.tiny_llama import ensure_llama


@pytest.fixture(scope="session")
def llama_family() -> ModelFamily:
    return ensure_llama()
