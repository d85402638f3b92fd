"""A family to import and export in every test of this folder."""

import pytest

from dovetail.models import Family
from tests.interop.llama_family import ensure_llama


@pytest.fixture(scope="session")
def llama_family() -> Family:
    return ensure_llama()
