# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Chromium zooms and moves the timeline of a report: wheel, mouse, keys, slider, reset."""

import dataclasses
import re

import pytest

from tests.browser import open_browser
from tests.unit.report.made_reports import whole_report
from tf_fuse.report import render
from tf_fuse.report.records.model import Report, Timeline

_PIXEL = 1.0  # Positions are rounded to a tenth; browsers round what is under the mouse.


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
        )
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    render.write(whole_report(), path)
    return path


@pytest.fixture
def timeline(chromium, page):
    """The browser with the timeline of a report in its middle; nothing has the focus."""
    chromium.set_window_size(1280, 900)
    return _open(chromium, page)


def _open(browser, page):
    browser.get(page.as_uri())
    browser.execute_script(
        "document.getElementById('timeline-picture').scrollIntoView({block: 'center'})"
    )
    return browser


def _travel(browser):
    """Return where the bytes of the request begin and end in the picture, in pixels."""
    left, width = browser.execute_script(
        "const rect = document.querySelector('.receive .travel');"
        "return ['x', 'width'].map((name) => Number(rect.getAttribute(name)))"
    )
    return left, left + width


def _ticks(browser):
    """Return the ticks of the time axis: text and place in pixels."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#timeline-picture .tick')].map((one) => ["
        "one.textContent, Number(/\\((.*),/.exec(one.getAttribute('transform'))[1])])"
    )


def _mouse(browser):
    from selenium.webdriver import ActionChains

    return ActionChains(browser, duration=0)


def _wheel(browser, y, control=False):
    """Turn the wheel over the middle of the picture."""
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.keys import Keys

    picture = browser.find_element("id", "timeline-picture")
    mouse = _mouse(browser)
    if control:
        mouse.key_down(Keys.CONTROL)
    mouse.scroll_from_origin(ScrollOrigin.from_element(picture), 0, y)
    if control:
        mouse.key_up(Keys.CONTROL)
    mouse.perform()


def _until(browser, condition):
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 60, poll_frequency=0.02).until(lambda _: condition())


def _width(browser):
    left, right = _travel(browser)
    return right - left


def test_ticks_are_round_times_at_their_places(timeline):
    ticks = _ticks(timeline)
    assert len(ticks) >= 4
    values = [float(re.fullmatch(r"([\d,.]+) µs", text)[1]) for text, _ in ticks]
    assert values[0] == 0
    # The request's bytes travel from 350 to 600 µs.
    left, right = _travel(timeline)
    for value, (_, at) in zip(values, ticks, strict=True):
        assert at == pytest.approx(left + (value - 350) * (right - left) / 250, abs=_PIXEL)
    bars = timeline.execute_script(
        "return [...document.querySelectorAll('.bars svg')].map((svg) =>"
        "[...svg.querySelectorAll('.tick')].map((one) => one.textContent))"
    )
    assert len(bars) > 8
    for texts in bars:
        assert len(texts) >= 2 and texts[0].split()[0] == "0"
        (unit,) = {text.partition(" ")[2] for text in texts}
        assert unit in ("", "B", "KiB", "µs", "ms")


def test_control_and_the_wheel_zoom_where_the_mouse_is(timeline):
    width = _width(timeline)
    left, right = _travel(timeline)
    picture = timeline.find_element("id", "timeline-picture").rect
    mouse = picture["width"] / 2
    at = timeline.execute_script("return scrollY")
    _wheel(timeline, -300, control=True)
    _until(timeline, lambda: _width(timeline) > width * 1.2)
    times = _width(timeline) / width
    # What is under the mouse stays there.
    wanted = [mouse + (one - mouse) * times for one in (left, right)]
    assert _travel(timeline) == pytest.approx(wanted, abs=2 * _PIXEL)
    assert timeline.execute_script("return scrollY") == at
    timeline.find_element("id", "timeline-reset").click()
    assert _travel(timeline) == pytest.approx((left, right), abs=_PIXEL)


def test_the_wheel_alone_scrolls_the_page_until_the_timeline_is_chosen(timeline):
    width = _width(timeline)
    at = timeline.execute_script("return scrollY")
    _wheel(timeline, -120)
    _until(timeline, lambda: timeline.execute_script("return scrollY") < at)
    assert _width(timeline) == width
    timeline.find_element("id", "timeline-view").click()
    _wheel(timeline, -120)
    _until(timeline, lambda: _width(timeline) > width * 1.1)


def test_dragging_moves_and_a_click_still_chooses(timeline):
    picture = timeline.find_element("id", "timeline-picture")
    left, _ = _travel(timeline)
    # Zoomed first: what shows everything cannot be moved.
    timeline.execute_script("document.getElementById('timeline-view').focus()")
    timeline.switch_to.active_element.send_keys("+")
    zoomed, _ = _travel(timeline)
    assert zoomed != left
    mouse = _mouse(timeline)
    mouse.move_to_element_with_offset(picture, 0, -40).click_and_hold()
    mouse.move_by_offset(30, 0).move_by_offset(30, 0).release().perform()
    assert _travel(timeline)[0] == pytest.approx(zoomed + 60, abs=2 * _PIXEL)
    assert not timeline.find_element("id", "timeline-detail").text
    timeline.find_element("css selector", ".receive").click()
    assert "waited" in timeline.find_element("id", "timeline-detail").text


def test_keys_zoom_move_and_reset(timeline):
    from selenium.webdriver.common.keys import Keys

    start = _travel(timeline)
    timeline.execute_script("document.querySelector('.receive').focus()")

    def press(key):
        timeline.switch_to.active_element.send_keys(key)
        return _travel(timeline)

    zoomed = press("+")
    assert zoomed[1] - zoomed[0] == pytest.approx(2 * (start[1] - start[0]), abs=_PIXEL)
    moved = press(Keys.ARROW_LEFT)
    assert moved[0] == pytest.approx(zoomed[0] + 100, abs=_PIXEL)
    assert press(Keys.ARROW_RIGHT) == pytest.approx(zoomed, abs=_PIXEL)
    assert press("-") == pytest.approx(start, abs=_PIXEL)
    press("+")
    assert press("0") == pytest.approx(start, abs=_PIXEL)
    # The request that had the focus has it still.
    press(Keys.ENTER)
    assert timeline.switch_to.active_element.get_attribute("aria-pressed") == "true"
    assert "waited" in timeline.find_element("id", "timeline-detail").text


def test_keys_go_on_when_the_focused_request_leaves_the_picture(timeline):
    from selenium.webdriver.common.keys import Keys

    start = _travel(timeline)
    timeline.execute_script("document.querySelector('.receive').focus()")
    timeline.switch_to.active_element.send_keys("+" * 4)
    for _ in range(60):
        timeline.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert not timeline.find_elements("css selector", ".receive")
    assert timeline.switch_to.active_element.get_attribute("id") == "timeline-view"
    timeline.switch_to.active_element.send_keys("0")
    assert _travel(timeline) == pytest.approx(start, abs=_PIXEL)


def test_the_slider_zooms_and_follows(timeline):
    from selenium.webdriver.common.keys import Keys

    slider = timeline.find_element("id", "timeline-zoom")
    width = _width(timeline)
    slider.send_keys(Keys.END)
    # At most, ten microseconds fill the width.
    shown = [float(text.removesuffix(" µs")) for text, _ in _ticks(timeline)]
    assert len(shown) >= 4 and 5 < shown[-1] - shown[0] <= 10
    timeline.find_element("id", "timeline-reset").click()
    assert _width(timeline) == pytest.approx(width, abs=_PIXEL)
    assert float(slider.get_attribute("value")) < 1


def test_one_finger_scrolls_the_page_and_two_zoom(timeline, page):
    timeline.execute_cdp_cmd(
        "Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2}
    )
    _open(timeline, page)
    x, y = timeline.execute_script(
        "const r = document.getElementById('timeline-picture').getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]"
    )

    def touch(kind, *fingers):
        points = [{"x": x + dx, "y": y + dy, "id": i} for i, (dx, dy) in enumerate(fingers)]
        timeline.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    try:
        width = _width(timeline)
        at = timeline.execute_script("return scrollY")
        touch("touchStart", (-20, 0), (20, 0))
        for far in range(25, 61, 5):
            touch("touchMove", (-far, 0), (far, 0))
        touch("touchEnd")
        _until(timeline, lambda: _width(timeline) > 2 * width)
        assert timeline.execute_script("return scrollY") == at
        zoomed = _travel(timeline)
        touch("touchStart", (0, 0))
        for far in range(10, 121, 10):
            touch("touchMove", (0, far))
        touch("touchEnd")
        _until(timeline, lambda: timeline.execute_script("return scrollY") < at)
        assert _travel(timeline) == zoomed
    finally:
        timeline.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_another_width_shows_the_same_times(timeline):
    timeline.execute_script("document.getElementById('timeline-view').focus()")
    timeline.switch_to.active_element.send_keys("+")
    ticks = {text for text, _ in _ticks(timeline)}
    timeline.set_window_size(700, 900)
    room = "return document.getElementById('timeline-view').clientWidth"
    width = "return document.getElementById('timeline-picture').width.baseVal.value"
    _until(timeline, lambda: timeline.execute_script(width) == timeline.execute_script(room))
    assert {text for text, _ in _ticks(timeline)} <= ticks


@pytest.mark.parametrize("duration", [0.0, 1e-300, 1e300])
@pytest.mark.parametrize("end", [0.0, -5.0, 1e300])
def test_odd_times_are_drawn(chromium, tmp_path, duration, end):
    timeline = whole_report().timeline
    (step,) = timeline.steps
    (receive,) = timeline.receives
    odd = Timeline(
        duration,
        timeline.lanes,
        timeline.transfers,
        (dataclasses.replace(receive, end_us=end),),
        (dataclasses.replace(step, end_us=end),),
        0,
    )
    render.write(Report(timeline=odd), tmp_path / "report.html")
    chromium.get_log("browser")
    chromium.get((tmp_path / "report.html").as_uri())
    assert chromium.find_elements("id", "timeline-picture")
    assert chromium.find_elements("class name", "failed") == []
    assert chromium.get_log("browser") == []
