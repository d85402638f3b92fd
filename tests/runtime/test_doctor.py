"""The doctor finds what training needs and this machine lacks."""

from dataclasses import replace
from pathlib import Path

from dovetail.runtime import examine_machine


def test_a_good_machine_lacks_nothing() -> None:
    report = examine_machine()
    assert report.missing == []
    assert report.devices is not None
    assert report.devices.platform == "cpu"
    assert report.facts()["devices"]["count"] == report.devices.count
    assert report.facts()["machine"]["cores"] == report.host.cores >= 1


def test_each_lack_is_named_with_what_to_do() -> None:
    found = examine_machine()
    host = replace(
        found.host, cache_folder=Path("/cache"), cache_free_bytes=5, cache_writable=False
    )
    broken = replace(
        found,
        host=host,
        devices=None,
        device_error="no backend could be started.",
        versions=found.versions | {"optax": None},
    )
    assert broken.missing == [
        "pip install optax",
        "a device that JAX can use: no backend could be started.",
        "a writable /cache (or set XDG_CACHE_HOME)",
        "free space in /cache: less than 1 GB",
    ]
    facts = broken.facts()
    assert facts["devices"] == {"error": "no backend could be started."}
    assert facts["missing"] == broken.missing
