"""The sharding of an experiment as text, as a page and in a notebook."""

from __future__ import annotations

import dataclasses

import pytest

from dovetail.experiments import find_experiment
from dovetail.targets import (
    ExperimentSharding,
    experiment_sharding,
    machine_program,
    parse_target,
)
from dovetail.targets.sharding_page import _axis
from dovetail.utils import format_bytes
from tests.cli.pages import Page, framed_page


@pytest.fixture(scope="module")
def sharding() -> ExperimentSharding:
    trainer, machine = find_experiment("tiny-lm").tiny().build(), parse_target("cpu-8")
    return experiment_sharding(machine_program(trainer, machine), machine, "<tiny>")


def test_a_report_lists_every_array_and_what_is_replicated(sharding: ExperimentSharding) -> None:
    lines = sharding.report().splitlines()
    assert lines[0].startswith("<tiny> on cpu-8 (")
    states = {id(each) for like in sharding.states_like_parameters().values() for each in like}
    paths = [each.path or "(model)" for each in sharding.arrays if id(each) not in states]
    shown = [line.split()[0] for line in lines if line[:2] == "  " and line[2] != " "]
    assert sorted(shown) == sorted(paths)
    assert f"parameters, {format_bytes(sharding.totals()['parameters'])} per device" in lines
    assert (lines[-1] == sharding.warning()) == bool(sharding.replicated())


def test_an_unnamed_sharding_has_a_title(sharding: ExperimentSharding) -> None:
    machine = sharding.machine
    unnamed = ExperimentSharding(machine, {}, ())
    assert unnamed.report().startswith(f"an experiment on cpu-8 ({machine}): mesh one device\n\n")
    assert "an experiment on cpu-8" in Page(unnamed.page()).text


def test_a_notebook_shows_the_page(sharding: ExperimentSharding) -> None:
    page = framed_page(sharding._repr_html_())
    assert page == sharding.page()
    assert "<tiny> on cpu-8" in Page(page).text


def test_names_are_escaped_in_the_page(sharding: ExperimentSharding) -> None:
    planted = "<b>planted</b>"
    arrays = tuple(
        dataclasses.replace(
            array,
            path=planted,
            dtype=planted,
            axes=tuple(planted for _ in array.axes),
            mesh_axes=tuple((planted,) for _ in array.axes),
        )
        for array in sharding.arrays[:2]
    )
    changed = dataclasses.replace(sharding, mesh={planted: 8}, arrays=arrays, experiment=planted)
    page = changed.page()
    assert "<b>planted" not in page
    assert page.count("&lt;b&gt;planted") > 6


def test_every_name_of_an_axis_is_escaped() -> None:
    drawn = _axis("<embed>", 4, by='"><script>', over=" / <fsdp>")
    assert "&lt;embed&gt;" in drawn
    assert "/ &lt;fsdp&gt;" in drawn
    assert "script" not in drawn, "an unknown mesh axis has the colour of lines"
