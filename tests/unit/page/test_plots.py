"""The form of the run's page plots every number of the file, over the axis and on the scale it asks for."""

import re
from urllib.parse import urlencode

import pytest

from rl_agent.monitor.curves import Curve
from rl_agent.page.plots import Plot, read_plot, smoothed
from tests.unit.page.run_files import write_run

NAME = "train/queue_s_p50"
SPACED = "train/very hard/queue_s_p50"


@pytest.fixture
async def plotted(tmp_path, look):
    """Return a function that gives the section of curves for a query."""
    write_run(
        tmp_path,
        *({"time": 3600.0 * n, "iteration": n, NAME: 10.0**n, SPACED: 0.0, "other": n} for n in (1, 2, 3)),
        *({"iteration": 3, "update_step": n, "trainer/odd": n / 8} for n in (7, 8)),
    )
    client = await look(tmp_path)

    async def section(**fields: str) -> str:
        html = await (await client.get(f"/runs/{tmp_path.name}/?{urlencode(fields)}")).text()
        return html[html.index('id="curves"') : html.index('id="iterations"')]

    return section


def words(html, name):
    return re.findall(f"<title>{re.escape(name)}: (.*?)</title>", html)


async def test_a_metric_that_no_panel_has_is_drawn_over_its_own_axis(plotted):
    assert words(await plotted(), NAME) == []
    drawn = words(await plotted(plot=NAME), NAME)
    assert drawn == ["10 at iteration 1", "100 at iteration 2", "1,000 at iteration 3"]
    assert words(await plotted(plot="trainer/odd"), "trainer/odd")[-1] == "1 at update step 8"
    assert words(await plotted(plot="trainer/odd", over="iteration"), "trainer/odd") == ["1 at iteration 3"]
    assert words(await plotted(plot=NAME, over="hour"), NAME)[-1] == "1,000 at hour 2"


@pytest.mark.parametrize("text", [f"{NAME} other", f"other,{NAME}", f" {NAME},  other, {NAME}"])
async def test_several_metrics_share_a_diagram(plotted, text):
    html = await plotted(plot=text)
    assert len(words(html, NAME)) == len(words(html, "other")) == 3


async def test_a_metric_is_completed_also_behind_others(plotted):
    options = re.findall('<option value="(.*?)">', await plotted(plot=NAME))
    assert {NAME, SPACED, "other", f"{NAME}, other", f"{NAME}, {SPACED}"} <= set(options)


async def test_a_name_that_was_completed_is_read_with_its_spaces(plotted):
    options = re.findall('<option value="(.*?)">', await plotted(plot=SPACED))
    html = await plotted(
        plot=next(option for option in options if option.endswith("other") and SPACED in option)
    )
    assert len(words(html, SPACED)) == len(words(html, "other")) == 3


async def test_a_logarithmic_scale_has_equal_steps_and_names_what_it_lacks(plotted):
    html = await plotted(plot=f"{NAME}, {SPACED}", log="1")
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)" r="3"><title>' + NAME, html)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert words(html, NAME)[-1] == "1,000 at iteration 3" and ">100</text>" in html
    assert f"{SPACED}: has no point" in html


async def test_a_name_that_no_number_has_is_reported_as_text(plotted):
    html = await plotted(plot="<b>")
    assert "&lt;b&gt;: no number has this name" in html and "<b>:" not in html


def test_smoothing_weighs_the_points_before_and_keeps_a_constant():
    assert smoothed(Curve("a", ((1.0, 5.0), (2.0, 5.0))), 0.9).points == ((1.0, 5.0), (2.0, 5.0))
    assert smoothed(Curve("a", ((1.0, 0.0), (2.0, 3.0))), 0.5).points == ((1.0, 0.0), (2.0, 2.0))


@pytest.mark.parametrize("word", ["nan", "-1", "much", ""])
def test_an_option_that_cannot_be_read_is_the_default(word):
    assert read_plot({"smoothing": word, "over": word, "log": word}) == Plot()
