"""Registries that a test may add to, without a trace for other tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.experiments import experiments
from dovetail.experiments.registry import _experiments
from dovetail.models import families
from dovetail.models.family import _by_model_type, _families


@contextmanager
def restored_registries() -> Iterator[None]:
    """Forgets the families and experiments that are registered inside."""
    families()  # the first use loads the package's own
    experiments()
    with _families.restored(), _by_model_type.restored(), _experiments.restored():
        yield
