# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chromium opens the reports of four jobs: numbers, search, clicks, slider, keys, accessibility."""

import importlib.util
import json
import re
import threading
from pathlib import Path

import pytest

from tests.browser import open_browser, requests_of
from tests.cluster.report import jobs
from tests.cluster.report.page_numbers import formatted, rows_of, sums_of
from tests.fault import coordinator
from tests.slow_cases import slow
from tests.unit.report.made_reports import large_report, whole_report
from tf_fuse.report import render

pytestmark = pytest.mark.cluster

_SCRIPT = Path(__file__).with_name("jobs.py")
_ON_SERVERS = ("features", "wide_deep")
_WIDE, _NARROW = 1280, 400
_LOOKS = pytest.mark.parametrize(
    ("width", "dark"), [(_WIDE, False), (_NARROW, True), slow(_WIDE, True), slow(_NARROW, False)]
)
# What axe checks: WCAG 2.2 A and AA, contrast among it.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def cases(folder):
    """What each job says of itself; they run at the same time."""
    found = {}

    def run(name):
        found[name] = coordinator.run(str(_SCRIPT), name, folder)[name]

    threads = [threading.Thread(target=run, args=(name,)) for name in jobs.JOBS]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(found) == sorted(jobs.JOBS)
    return found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


def _open(chromium, page, width=1280, dark=False):
    """Open a page as a user of a screen of some width sees it; return its errors."""
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {
            "features": [
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                # (What scrolls slowly cannot be clicked meanwhile.)
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ]
        },
    )
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    chromium.get_log("browser")
    requests_of(chromium)
    chromium.get(page.as_uri())
    assert chromium.execute_script("return document.documentElement.dataset.drawn") is not None
    failed = chromium.execute_script("return document.querySelectorAll('.failed').length")
    asked = requests_of(chromium) - {page.as_uri(), "data:,"}
    return [*chromium.get_log("browser"), *asked, *[f"{failed} parts failed"] * bool(failed)]


def _show_all(chromium):
    """Open what is folded, and show all rows of all tables."""
    chromium.execute_script(
        "for (const one of document.querySelectorAll('details')) one.open = true;"
        "for (let one; (one = [...document.querySelectorAll('button')].find("
        "(b) => b.textContent.startsWith('Show ') && b.id === '')); ) one.click();"
    )


def _numbers(chromium):
    return chromium.execute_script(
        "return [...document.querySelectorAll('[data-path]')].map("
        "(e) => [JSON.parse(e.dataset.path), e.dataset.form, e.textContent])"
    )


def _rest_of_labels(chromium):
    """Return the texts of the step's picture without the numbers that say where they come from."""
    return chromium.execute_script(
        "return [...document.querySelectorAll('#step-picture :is(.row text, .soft-text)')].map("
        "(e) => { const rest = e.cloneNode(true);"
        "rest.querySelectorAll('[data-path], [data-sum]').forEach((one) => one.remove());"
        "return rest.textContent; })"
    )


def _pages(folder):
    """All pages of this module: of the jobs, and two that no job made."""
    for name, report in (("whole", whole_report()), ("large", large_report(10_000))):
        if not (folder / f"{name}.html").exists():
            render.write(report, folder / f"{name}.html")
    return [folder / f"{name}.html" for name in (*jobs.JOBS, "whole", "large")]


def _axe():
    """Return the source of axe-core, which the package brings along."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip('axe-playwright-python is not installed: pip install ".[test]"')
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def test_jobs_have_the_parts_that_they_should(cases):
    for name in _ON_SERVERS:
        assert cases[name]["recorded"] and cases[name]["steps"] >= 1
        assert cases[name]["notes"] == []
        assert cases[name]["fused_rpcs"] > 0
    assert cases["mlp"] == {"sharded": [True]}
    assert cases["transformer"]["operations"] > 20


@_LOOKS
def test_pages_open_without_errors_and_without_a_network(cases, folder, chromium, width, dark):
    for page in _pages(folder):
        assert _open(chromium, page, width, dark) == [], page.name
        # Nothing is wider than the screen, but what scrolls by itself.
        scroll, room = chromium.execute_script(
            "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
        )
        assert scroll == room <= width


@_LOOKS
def test_pages_pass_the_checks_of_axe(cases, folder, chromium, width, dark):
    source = _axe()
    for page in _pages(folder):
        _open(chromium, page, width, dark)
        rows = chromium.find_elements("css selector", ".row")
        if rows:
            chromium.execute_script(
                "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", rows[0]
            )
        chromium.execute_script(source)
        found = chromium.execute_async_script(
            "const done = arguments[1];"
            "axe.run(document, {runOnly: arguments[0], resultTypes: ['violations']}).then("
            "(r) => done({passes: r.passes.length, violations: r.violations.map((v) => "
            "[v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200))])}))",
            _RULES,
        )
        assert found["violations"] == [], page.name
        assert found["passes"] > 10


def test_every_number_equals_the_json(cases, folder, chromium):
    seen = set()
    for page in _pages(folder)[:-1]:
        data = json.loads(page.with_suffix(".json").read_text())
        _open(chromium, page)
        for kind in (".receive", ".row"):
            for one in chromium.find_elements("css selector", kind)[:1]:
                one.send_keys("\ue007")  # Enter: shows the numbers of this request.
        _show_all(chromium)
        for path, form, text in _numbers(chromium):
            value = data
            for key in path:
                value = value[key]
            assert text == formatted(value, form), (page.name, path, value)
            seen.add(path[0])
        sums = chromium.execute_script(
            "return Object.fromEntries([...document.querySelectorAll('[data-sum]')].map("
            "(e) => [e.dataset.sum, [Number(e.dataset.value), e.dataset.form, e.textContent]]))"
        )
        for value, form, text in sums.values():
            assert text == formatted(value, form)
        step = "return document.getElementById('recorded-step')?.value ?? -1"
        wanted = sums_of(data, int(chromium.execute_script(step)))
        assert {key: sums[key][0] for key in wanted} == pytest.approx(wanted), page.name
        placed = [sums[key][0] for key in sums if key.startswith("placed bytes ")]
        kept = [one["kept_bytes"] for of in data["placements"] for one in of["variables"]]
        assert sum(placed) == sum(kept)
        if not data["functions"]:
            continue
        shown = data["functions"][
            int(chromium.execute_script("return document.getElementById('function').value"))
        ]
        tensors = [one for group in shown["groups"] for one in group["tensors"]]
        tensors += [one["tensor"] for one in shown["left"]]
        wanted = {
            "before": len(tensors),
            "after": len(shown["groups"]) + len(shown["left"]),
            "groups": len(shown["groups"]),
            "left": len(shown["left"]),
            "bytes": sum(one["bytes"] or 0 for one in tensors),
        }
        wanted |= rows_of(shown)
        assert {key: sums[key][0] for key in wanted} == wanted, page.name
        assert [text for text in _rest_of_labels(chromium) if re.search(r"\d", text)] == []
    assert seen == {
        "functions", "gains", "layouts", "placements", "server_updates", "tasks", "timeline",
        "weight_updates",
    }  # fmt: skip


@pytest.mark.parametrize("name", _ON_SERVERS)
def test_search_finds_a_variable_and_a_click_shows_its_tensors(cases, folder, chromium, name):
    _open(chromium, folder / f"{name}.html")
    data = json.loads((folder / f"{name}.json").read_text())
    word = "table_0003" if name == "features" else "embedding"
    field = chromium.find_element("id", "search")
    field.send_keys(word)
    index = int(chromium.execute_script("return document.getElementById('function').value"))
    tensors = [
        [one for one in group["tensors"] if word in one["variable"]]
        for group in data["functions"][index]["groups"]
    ]
    assert sum(map(len, tensors)) >= 2
    text = chromium.find_element("id", "hits").text
    assert int(re.match(r"(\d+) tensors", text)[1]) >= sum(map(len, tensors))
    found = chromium.execute_script(
        "return [...document.querySelectorAll('.row')].map("
        "(e) => [e.dataset.row, e.classList.contains('found'), e.classList.contains('dim')])"
    )
    for row, is_found, is_dim in found:
        if row.startswith("g") and tensors[int(row[1:])]:
            assert is_found
        assert is_dim == (not is_found)
    chromium.find_element("id", "show-hit").click()
    _show_all(chromium)
    assert word in chromium.find_element("id", "tensors").text
    row = next(row for row, is_found, _ in found if is_found)
    (expanded,) = chromium.find_elements("css selector", ".row[aria-expanded=true]")
    assert expanded.get_attribute("data-row") == row


def test_a_click_on_each_group_shows_all_its_tensors(cases, folder, chromium):
    _open(chromium, folder / "features.html")
    data = json.loads((folder / "features.json").read_text())
    index = int(chromium.execute_script("return document.getElementById('function').value"))
    groups = data["functions"][index]["groups"]
    assert sum(len(group["tensors"]) for group in groups) >= 48
    for number, group in enumerate(groups):
        (row,) = chromium.find_elements("css selector", f".row[data-row=g{number}]")
        row.click()
        _show_all(chromium)
        cells = chromium.execute_script(
            "return [...document.querySelectorAll('#tensors tbody tr')].map("
            "(row) => [...row.cells].map((cell) => cell.textContent))"
        )
        wanted = [
            [
                one["variable"] or "\u2013",
                one["producer"],
                one["consumer"] or "\u2013",
                one["name"],
                one["dtype"] + (", may be dead" if one["may_be_dead"] else ""),
                "not known" if one["bytes"] is None else formatted(one["bytes"], "count"),
            ]
            for one in group["tensors"]
        ]
        assert sorted(cells) == sorted(wanted)


def test_the_tooltip_of_a_group_lists_its_first_tensors(folder, chromium):
    *_, whole, large = _pages(folder)
    title = "return document.querySelector('.row title').textContent.split('\\n')"
    _open(chromium, whole)
    assert chromium.execute_script(title) == [
        "ps:0 → worker:0: one request, 3 tensors · 384 B",
        "table_1 (64 B)",
        "table_2 (128 B)",
        "table_3 (192 B)",
    ]
    _open(chromium, large)
    lines = chromium.execute_script(title)
    data = json.loads(large.with_suffix(".json").read_text())
    (function,) = data["functions"]
    named = [{one["variable"] for one in group["tensors"]} for group in function["groups"]]
    shown = [re.sub(r" \(.*\)$", "", line) for line in lines[1:-1]]
    (group,) = [one for one in named if set(shown) <= one]
    assert len(set(shown)) == 30
    assert lines[-1] == f"and {len(group) - 30} more"


def test_the_slider_changes_the_picture(cases, folder, chromium):
    _open(chromium, folder / "features.html")
    lines = (
        "return [...document.querySelectorAll('.row:not(.left) path')].filter("
        "(e) => e.getAttribute('visibility') !== 'hidden').length"
    )
    groups = chromium.execute_script("return document.querySelectorAll('.row:not(.left)').length")
    assert chromium.execute_script(lines) == groups
    slider = chromium.find_element("id", "slider")
    height = chromium.find_element("id", "step-picture").size["height"]
    slider.send_keys("\ue011")  # Home.
    assert slider.get_attribute("value") == "0"
    assert slider.get_attribute("aria-valuetext") == "before"
    assert chromium.execute_script(lines) > groups
    assert chromium.find_element("id", "step-picture").size["height"] > height
    slider.send_keys("\ue010")  # End.
    assert chromium.execute_script(lines) == groups


def test_the_keyboard_does_what_the_mouse_does(cases, folder, chromium):
    from selenium.webdriver.common.keys import Keys

    _open(chromium, folder / "features.html")
    focused = "return document.activeElement.dataset.row ?? document.activeElement.id"

    def press(*keys):
        for key in keys:
            chromium.switch_to.active_element.send_keys(key)
        return chromium.execute_script(focused)

    chromium.find_element("id", "slider").send_keys(Keys.TAB)
    order = chromium.execute_script(
        "return [...document.querySelectorAll('.row')].map((e) => e.dataset.row)"
    )
    if chromium.execute_script(focused) == "step-view":  # (Chromium stops at what scrolls.)
        press(Keys.TAB)
    assert chromium.execute_script(focused) == order[0]
    assert press(Keys.ARROW_DOWN) == order[1]
    assert press(Keys.ARROW_UP) == order[0]
    press(Keys.ENTER)
    assert chromium.find_elements("id", "tensors")
    press(Keys.ESCAPE)
    assert not chromium.find_elements("id", "tensors")
    press(Keys.SPACE)
    assert chromium.find_elements("id", "tensors")
    receive = chromium.find_element("css selector", ".receive[tabindex='0']")
    chromium.execute_script("arguments[0].focus()", receive)
    press(Keys.ENTER)
    assert "waited" in chromium.find_element("id", "timeline-detail").text


def test_ten_thousand_tensors_are_drawn_and_opened_by_their_prefixes(folder, chromium):
    page = _pages(folder)[-1]
    assert _open(chromium, page) == []
    assert chromium.execute_script("return document.querySelectorAll('*').length") < 2000
    chromium.find_element("css selector", ".row").send_keys("\ue007")
    summaries = [one.text for one in chromium.find_elements("css selector", "#tensors summary")]
    assert len(summaries) == 7
    assert summaries[0].startswith("tower_")
    chromium.find_element("css selector", "#tensors summary").click()
    rows = chromium.find_elements("css selector", "#tensors details[open] tbody tr")
    assert len(rows) == 100


def test_reports_hold_no_values_paths_or_environment(cases, folder):
    root = str(Path(__file__).resolve().parents[3])
    for name in jobs.JOBS:
        for ending in ("html", "json"):
            text = (folder / f"{name}.{ending}").read_text()
            for secret in (root, str(folder), "/home/", str(jobs.SECRET_NUMBER), jobs.SECRET_WORD):
                assert secret not in text, (name, ending)
