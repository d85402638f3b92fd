"""What every test stands on: eight virtual CPU devices, checked annotations, and no user's folders.

This runs before any test file is collected, so before any of the checked rooms is imported: XLA
reads its flags once, the number of devices is fixed at first use, and the import hook sees only
what is imported after it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jaxtyping
import pytest

import tests.typechecking  # noqa: F401  the import hook finds it by name
from dovetail.targets import share_one_cpu
from tests.heavy import is_heavy

ROOT = Path(__file__).resolve().parent.parent

# Rooms whose functions take arrays. Their annotations, shapes included, are checked at every call.
# Rooms that face users are left out: there a wrong type must end in our message, not beartype's.
CHECKED_ROOMS = ("kernels", "layers", "models", "generate", "learner")

# Most of a test's time is XLA's, generating code that runs for a millisecond. Without optimising it
# takes a third (measured: 87 s of CPU to 29). `make slow` compiles as users do.
QUICK = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # a flag that XLA does not know ends the process
    QUICK += " --xla_cpu_use_fusion_emitters=false"
AS_USERS_DO = os.environ.get("DOVETAIL_TEST_OPTIMISED", "") not in ("", "0")

os.environ["JAX_PLATFORMS"] = "cpu"  # for the processes that tests start, too
# A device that waits at a collective holds a thread of XLA's pool, which has as many threads as
# devices; with a second program in flight they can run out, and all wait for ever (seen once in
# tests/learner/test_sharding.py). XLA reads the size of its pool from here.
os.environ.setdefault("NPROC", "32")
if not AS_USERS_DO:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
share_one_cpu()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# What one run compiles, the next one loads. `make clean` empties it.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax-tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jaxtyping.install_import_hook(
    [f"dovetail.{room}" for room in CHECKED_ROOMS], "tests.typechecking.check_calls"
)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the heavy cases, so that the default run leaves them to `make slow`."""
    for item in items:
        if is_heavy(item.nodeid):
            item.add_marker(pytest.mark.sweep)


@pytest.fixture(autouse=True, scope="session")
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps the tests out of the user's own folders; the whole session shares one cache folder.

    So a corpus is prepared once for all tests, and never found ready from an earlier day.
    """
    home = tmp_path_factory.mktemp("user")
    names = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data"}
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in names.items():
            (home / name).mkdir()
            patch.setenv(variable, str(home / name))
        yield home


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives one test an empty cache folder of its own."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
