"""Reading goodput logs: every second is in one class, whatever happened to the run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dovetail.config import RunError
from dovetail.runtime.goodput import CLASSES, goodput

NOON = 1_794_960_000.0


def write_log(folder, life, *lines, began=NOON, process=0):
    """Writes lines of (seconds, steps, more); each is written when its seconds are over."""
    at, text = began, ""
    for seconds, *rest in lines:
        at += sum(seconds.values())
        entry = {"at": at, "seconds": seconds}
        if rest and rest[0] is not None:
            entry["steps"] = rest[0]
        text += json.dumps({**entry, **(rest[1] if len(rest) > 1 else {})}) + "\n"
    (folder / "goodput").mkdir(exist_ok=True)
    (folder / "goodput" / f"{life:06d}-{process}.jsonl").write_text(text)
    return at


DONE = {"done": True}


def test_the_seconds_of_all_lives_and_of_the_time_between_add_up_to_the_wall_time(tmp_path):
    died = write_log(
        tmp_path,
        1,
        ({"start": 2.0, "peers": 1.0},),
        ({"compile": 5.0},),
        ({"step": 8.0, "input": 1.0, "save": 1.0}, [0, 10], {"saves": 1}),
    )
    ended = write_log(
        tmp_path,
        2,
        ({"start": 2.0, "restore": 3.0, "compile": 1.0},),
        ({"step": 10.0, "evaluate": 4.0}, [10, 20], DONE),
        began=died + 30.0,
    )
    found = goodput(tmp_path)
    assert found.wall == pytest.approx(ended - NOON)
    assert set(found.seconds) == set(CLASSES)
    assert {name: seconds for name, seconds in found.seconds.items() if seconds} == {
        "step": 18.0,
        "input": 1.0,
        "save": 1.0,
        "evaluate": 4.0,
        "start": 4.0,
        "compile": 6.0,
        "restore": 3.0,
        "peers": 1.0,
        "idle": 30.0,
    }
    assert found.fraction == pytest.approx(18 / 68)
    assert (found.lives, found.steps, found.repeated_steps, found.saves) == (2, 20, 0, 1)


def test_steps_that_a_later_life_repeats_were_rolled_back(tmp_path):
    write_log(tmp_path, 1, ({"step": 10.0}, [0, 10]), ({"step": 8.0}, [10, 18]))
    write_log(tmp_path, 2, ({"step": 14.0}, [6, 20], DONE), began=NOON + 18)
    found = goodput(tmp_path)
    assert found.seconds["rolled_back"] == pytest.approx(4.0 + 8.0)
    assert found.seconds["step"] == pytest.approx(6.0 + 14.0)
    assert found.repeated_steps == 12
    assert found.wall == pytest.approx(32.0)


def test_a_rollback_in_a_life_relabels_its_steps(tmp_path):
    write_log(
        tmp_path,
        1,
        ({"step": 10.0}, [0, 10], DONE),
        ({"restore": 1.0},),
        ({"step": 7.0}, [5, 12], DONE),
    )
    found = goodput(tmp_path)
    assert (found.seconds["rolled_back"], found.seconds["step"]) == (5.0, 12.0)
    assert found.repeated_steps == 5


def test_a_step_that_its_life_did_not_end_was_rolled_back(tmp_path):
    write_log(
        tmp_path,
        1,
        ({"step": 1.0}, [0, 0]),  # the first step takes three seconds, and is done
        ({"step": 2.0}, [0, 1]),
        ({"step": 1.0}, [1, 1]),  # the next hangs until the life is killed
        ({"step": 300.0}, [1, 1]),
    )
    found = goodput(tmp_path)
    assert (found.seconds["step"], found.seconds["rolled_back"]) == (3.0, 301.0)


def test_time_after_the_last_step_counts_as_step_where_steps_ended_in_order(tmp_path):
    write_log(tmp_path, 1, ({"step": 1.0}, [0, 1]), ({"step": 0.5}, [1, 1], DONE))
    assert goodput(tmp_path).seconds["rolled_back"] == 0


def test_torn_lines_are_left_out(tmp_path):
    write_log(tmp_path, 1, ({"start": 2.0},), ({"step": 3.0}, [0, 3], DONE))
    file = tmp_path / "goodput" / "000001-0.jsonl"
    nonsense = [
        '{"at": 1, "seco',
        "[]",
        '{"at": 1, "seconds": {"step": -1}}',
        '{"at": 1, "seconds": {"dance": 1}}',
        '{"at": "now", "seconds": {"step": 1}}',
        '{"at": 1, "seconds": {"step": 1}, "steps": [1]}',
        '{"at": 1, "seconds": {"step": NaN}}',
        "\x00\x00",
    ]
    with file.open("a") as log:
        log.write("\n".join(nonsense))
    assert goodput(tmp_path).wall == 5.0


def test_a_clock_that_was_set_back_makes_no_time_negative_or_lost(tmp_path):
    write_log(tmp_path, 1, ({"step": 100.0}, [0, 10], DONE))
    write_log(tmp_path, 2, ({"step": 50.0}, [10, 15], DONE), began=NOON - 3600)
    write_log(tmp_path, 3, ({"step": 50.0}, [15, 20], DONE), began=NOON - 3600 + 57)
    found = goodput(tmp_path)
    assert found.seconds["step"] == 200.0
    assert found.seconds["idle"] == pytest.approx(7.0), "measured with the new clock"
    assert all(span.total > 0 for span in found.timeline)


def test_the_last_hour_is_that_of_the_timeline(tmp_path):
    write_log(tmp_path, 1, ({"compile": 7200.0},), ({"step": 5400.0}, [0, 54]))
    found = goodput(tmp_path)
    assert found.last_hour_fraction == 1.0
    assert sum(found.last_hour.values()) == pytest.approx(3600)
    write_log(tmp_path, 2, ({"start": 900.0},), began=NOON + 12600 + 900)
    found = goodput(tmp_path)
    assert found.last_hour_fraction == pytest.approx(0.5)
    assert found.last_hour["idle"] == pytest.approx(900)


def test_where_process_0_has_no_log_the_lowest_process_that_has_one_is_read(tmp_path):
    write_log(tmp_path, 1, ({"step": 1.0}, [0, 1], DONE), process=3)
    write_log(tmp_path, 1, ({"step": 2.0}, [0, 1], DONE), process=2)
    write_log(tmp_path, 2, ({"step": 4.0}, [1, 2], DONE), process=0, began=NOON + 2)
    write_log(tmp_path, 2, ({"step": 8.0}, [1, 2], DONE), process=1)
    assert goodput(tmp_path).seconds["step"] == 6.0
    assert goodput(tmp_path, process=1).seconds["step"] == 8.0
    with pytest.raises(RunError, match="no goodput log of process 9"):
        goodput(tmp_path, process=9)


def test_restarts_are_counted_by_cause(tmp_path):
    write_log(tmp_path, 1, ({"step": 1.0}, [0, 1]))
    events = [
        {"event": "Restart", "cause": "crash by SIGKILL"},
        {"event": "NonFiniteStep", "step": 3},
        {"event": "Restart", "cause": "hang in the phase 'step'"},
        {"event": "Restart", "cause": "crash by SIGKILL"},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "events.jsonl").write_text(text + '{"event": "Rest')
    assert goodput(tmp_path).restarts == {"crash by SIGKILL": 2, "hang in the phase 'step'": 1}


def test_a_folder_without_a_log_is_explained(tmp_path):
    with pytest.raises(RunError, match="has no goodput log"):
        goodput(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_any_history_adds_up_and_agrees_with_a_count_step_by_step(tmp_path, seed):
    """Random lives, rollbacks and kills, compared with a slow account of every single step."""
    draw = random.Random(seed)
    now, kept, wall = NOON, {}, 0.0  # kept: the seconds of each step that counts
    checkpoint, begin = 0, None
    for life in range(1, draw.randint(2, 6)):
        gap = draw.choice([0.0, 5.0]) if begin is not None else 0.0
        lines, first = [({"start": 1.0},)], checkpoint
        for _ in range(draw.randint(0, 4)):
            count, each = draw.randint(1, 5), draw.choice([0.5, 1.0, 2.0])
            kept = {step: s for step, s in kept.items() if step <= first}
            kept |= dict.fromkeys(range(first + 1, first + count + 1), each)
            lines.append(({"step": count * each, "input": 0.25}, [first, first + count]))
            first += count
            if draw.random() < 0.3:
                first = draw.randint(checkpoint, first)  # rolls back
            elif draw.random() < 0.5:
                checkpoint = first
        begin = now + gap
        now = write_log(tmp_path, life, *lines, began=begin)
        wall = now - NOON
    # The last life trains a step, so that everything after its checkpoint is repeated.
    kept = {step: s for step, s in kept.items() if step <= checkpoint} | {checkpoint + 1: 1.0}
    write_log(tmp_path, 99, ({"step": 1.0}, [checkpoint, checkpoint + 1], DONE), began=now)
    found = goodput(tmp_path)
    assert found.wall == pytest.approx(wall + 1.0)
    assert found.seconds["step"] == pytest.approx(sum(kept.values()))


def test_cells_hold_all_seconds_in_order(tmp_path: Path) -> None:
    write_log(tmp_path, 1, ({"start": 10.0},), ({"step": 30.0}, [0, 3], DONE))
    cells = goodput(tmp_path).cells(8)
    assert [max(cell, key=cell.__getitem__) for cell in cells] == ["start"] * 2 + ["step"] * 6
    assert sum(sum(cell.values()) for cell in cells) == pytest.approx(40.0)
