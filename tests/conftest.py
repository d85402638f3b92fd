"""The ground of every test: eight virtual CPU devices, the import hook, and temporary user folders.

This runs before any test file is collected, so before any checked subpackage is imported: XLA reads
its flags once, the number of devices is fixed at first use, and the import hook sees only what is
imported after it.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from dovetail.config import registry
from dovetail.targets import set_virtual_device_flags
from tests import rotation, shape_suffixes
from tests.heavy import is_heavy, stale_patterns

ROOT = Path(__file__).resolve().parent.parent

# Subpackages whose functions take arrays: annotations and shape suffixes are checked at every call.
# Those that face users are left out: there a wrong type must end in our message, not beartype's.
CHECKED = ("kernels", "layers", "models", "generate", "learner")

# Most of a test's time is XLA's, generating code that runs for a millisecond. Without optimising it
# takes a third (measured: 87 s of CPU to 29). `make slow` compiles as users do.
QUICK = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # a flag that XLA does not know ends the process
    # Small programs are not worth dividing among threads (an eighth of a test's CPU time).
    QUICK += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
AS_USERS_DO = os.environ.get("DOVETAIL_TEST_OPTIMISED", "") not in ("", "0")

# A shell without job control ignores Ctrl-C in what it starts in the background, and so would every
# process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_PLATFORMS"] = "cpu"  # for the processes that tests start, too
# A device that waits at a collective holds a thread of XLA's pool, which has as many threads as
# devices; with a second program in flight they can run out, and all wait for ever (seen once in
# tests/learner/test_sharding.py). XLA reads the size of its pool from here.
os.environ.setdefault("NPROC", "32")
if not AS_USERS_DO:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
set_virtual_device_flags()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# What one run compiles, the next one loads. `make clean` empties it.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "jax-tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
shape_suffixes.install([f"dovetail.{subpackage}" for subpackage in CHECKED])


_LONG = ("sweep", "slow", "rotating")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the choice of a third of the sweep and of the slow tests."""
    parser.addoption(
        "--third", metavar="COMMIT", help="run a third of long tests, chosen by a hash"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which third of the long tests runs."""
    commit = config.getoption("--third")
    if not commit:
        return None
    third = rotation.third_of(commit) + 1
    return f"third {third} of 3, chosen by commit {commit[:12]} (make sweep slow ALL=1 runs all)"


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves the heavy cases to the sweep, and of long tests one third where that is asked for."""
    for item in items:
        if is_heavy(item.nodeid):
            item.add_marker(pytest.mark.sweep)
    if config.args == config.getini("testpaths") and not session.testsfailed:  # all, and no error
        stale = stale_patterns(item.nodeid for item in items)
        if stale:
            raise pytest.UsageError(f"tests/heavy.py: these match no test: {stale}")
    if commit := config.getoption("--third"):
        long = [item.nodeid for item in items if any(map(item.get_closest_marker, _LONG))]
        left_out = set(long) - rotation.select(long, rotation.third_of(commit))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


@pytest.fixture(autouse=True, scope="session")
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps the tests out of the user's own folders; all workers of a run share one cache folder.

    So a corpus is prepared once for all tests, and never found ready from an earlier day.
    """
    base = tmp_path_factory.getbasetemp()
    # A worker of xdist has a folder of its own inside of that of the run.
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "user"
    home.mkdir(exist_ok=True)
    names = {"XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data"}
    with pytest.MonkeyPatch.context() as patch:
        for variable, name in names.items():
            (home / name).mkdir(exist_ok=True)
            patch.setenv(variable, str(home / name))
        yield home


@pytest.fixture(autouse=True, scope="module")
def imported_packages() -> Iterator[None]:
    """Forgets the packages that the tests of a file import: they decide whose fault an error is."""
    before = set(registry._packages)
    yield
    registry._packages.intersection_update(before)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives one test an empty cache folder of its own."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
