"""A trainer whose progress is hidden shows nothing, not even while it prepares its data."""

import sys

from dovetail.runtime import Console
from dovetail.utils import Progress


def test_hidden_progress_is_hidden_while_data_is_prepared(config, tmp_path, monkeypatch):
    shown = []

    class Recorded(Progress):
        def __init__(self, title, *, enabled):
            shown.append(enabled)
            super().__init__(title, enabled=False)

    monkeypatch.setattr(sys.modules["dovetail.data.preparation.prepare"], "Progress", Recorded)
    for name in ("hidden", "shown"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}\n" * 50)
        config.input.corpus.files = str(tmp_path / name)
        trainer = config.set(writers={"console": Console.Config()}).build()
        if name == "hidden":
            trainer.hide_progress()
            assert trainer.writers == {}
        trainer.check(tmp_path / "run")
    assert shown == [False, True]
