"""Plans and searches as text, as a page and in a notebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.experiments import find_experiment
from dovetail.plan import (
    ComparisonRow,
    Plan,
    Planner,
    PlanVerification,
    ProgramCache,
    RankedPlan,
    SearchResult,
    TargetComparison,
    configured_candidate,
)
from dovetail.plan.report import remedies_report
from dovetail.targets import apply_target, parse_target
from tests.cli.pages import Page, framed_page


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    fitted = apply_target(find_experiment("llama2-7b").tiny(), "tpu-v5p-8")
    cache = ProgramCache(tmp_path_factory.mktemp("programs"))
    return Planner("<tiny>", fitted.config, fitted.machine, cache, is_analytic=True)


@pytest.fixture(scope="module")
def plan(planner: Planner) -> Plan:
    return planner.analytic_plan()


@pytest.fixture(scope="module")
def ranked(planner: Planner, plan: Plan) -> RankedPlan:
    return RankedPlan(configured_candidate(planner.config, planner.machine), plan)


def too_big(plan: Plan, share: float = 0.5) -> Plan:
    """Returns the plan for a machine with a part of the memory that it needs."""
    return replace(plan, memory=replace(plan.memory, limit=share * plan.memory.total))


def test_a_plan_has_a_summary_a_report_and_a_page(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.summary().startswith("analytic: fits, ")
    lines = plan.report().splitlines()
    assert lines[0].startswith("<tiny> on tpu-v5p-8 (")
    assert lines[1].endswith("; analytic: by arithmetic, nothing was compiled")
    assert "memory per chip" in lines
    assert any(line.startswith("  at $") for line in lines)
    page = Page(plan.page())
    assert f"MFU {plan.mfu:.1%}" in page.text
    assert framed_page(plan._repr_html_()) == plan.page()
    assert capsys.readouterr() == ("", ""), "a library prints nothing"


def test_a_refusal_and_notes_are_at_the_end(plan: Plan) -> None:
    refused = replace(plan, refusal="too large", slow=("slow",), notes=("x",), compile_seconds=2.0)
    assert refused.report().splitlines()[-3:] == ["refused: too large", "note: slow", "note: x"]
    assert "the compiler refused it after 2 s" in refused.report()
    assert "Refused" in Page(refused.page()).text


def test_a_plan_that_does_not_fit_lists_remedies(plan: Plan, ranked: RankedPlan) -> None:
    big = too_big(plan)
    assert "does not fit, " in big.summary()
    assert "What would fit" in Page(big.page([ranked])).text
    text = remedies_report(big, [ranked])
    assert "the nearest changes that fit, by arithmetic alone:\n  " in text
    assert text.endswith(str(ranked.candidate))
    assert "nothing was found that fits: more chips" in remedies_report(big, [])
    tiny = remedies_report(too_big(plan, 1e-6), [])
    assert tiny.startswith("parameters and optimizer alone take ")


def test_a_search_is_beside_the_choice_of_the_rule(plan: Plan, ranked: RankedPlan) -> None:
    slower = replace(plan, timing=replace(plan.timing, matmul=plan.timing.matmul + 1.0))
    found = SearchResult(1200, slower, (ranked,)).report().splitlines()
    assert found[0] == "1,200 candidates ranked by arithmetic; the best of them:"
    assert found[-2] == f"the rule: {slower.summary()}"
    assert found[-1].endswith("less time per step than the rule's choice")
    for rule, last in (
        (plan, "the rule's choice is the best"),
        (too_big(plan), "the rule's own choice does not fit"),
    ):
        assert SearchResult(1, rule, (ranked,)).report().endswith(last)
    none = SearchResult(1, plan, (ranked._replace(plan=too_big(plan)),))
    assert none.report().endswith("nothing was found that fits")


def test_machines_are_sorted(planner: Planner, ranked: RankedPlan, tmp_path: Path) -> None:
    rows = [
        ComparisonRow(parse_target("tpu-v5e-4"), None, None, "too big"),
        ComparisonRow(parse_target("tpu-v5p-16"), 8, ranked),
        ComparisonRow(parse_target("tpu-v5p-8"), 4, ranked),
    ]
    compared = TargetComparison("<tiny>", planner.config)
    title, _, *lines = compared.report(rows, by="chips").splitlines()
    assert title.startswith("<tiny> by arithmetic, sorted by chips; ")
    assert [line.split()[0] for line in lines] == ["tpu-v5p-8", "tpu-v5p-16", "tpu-v5e-4"]
    assert lines[-1].endswith("does not fit: too big")


def test_a_verified_run_says_what_it_did_not_record() -> None:
    verified = PlanVerification("runs/a", "tpu-v5p", 1.0, 1.5, 1e9, 2e9)
    assert verified.report().splitlines() == [
        "runs/a on tpu-v5p",
        "  step time  predicted 1 s, measured 1.5 s: 1.50 times as long",
        "  memory     beside state and batch, planned 1 GB, measured 2 GB: 2.00 times as much",
    ]
    assert "not recorded" in replace(verified, measured_bytes=None).report()
