# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make docs` builds a site without broken links, which Chromium shows without an error."""

import functools
import html.parser
import http.server
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from tests.browser import open_browser, requests_of

_ROOT = Path(__file__).resolve().parents[3]
_MODULES = (
    "cluster", "collectives", "explain", "layout", "parameter_server", "prometheus", "report",
)  # fmt: skip


class _Page(html.parser.HTMLParser):
    """The anchors of a page, the links of its text, and what a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag in ("link", "script", "img", "iframe"):
            self.loads += [attributes[name] for name in ("href", "src") if name in attributes]


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f'{module} is not installed: pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=_ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A browser without a window."""
    with open_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


def _wait_for(chromium, selector):
    """Return the first element that a CSS selector finds, once it is visible."""
    from selenium.webdriver.support import expected_conditions
    from selenium.webdriver.support.wait import WebDriverWait

    is_visible = expected_conditions.visibility_of_element_located(("css selector", selector))
    return WebDriverWait(chromium, 60).until(is_visible, selector)


def _click(chromium, selector):
    """Click the first element that a CSS selector finds, once it is there and stays there."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.wait import WebDriverWait

    def click(_):
        chromium.find_element("css selector", selector).click()
        return True

    # While somebody types, results come and go.
    WebDriverWait(chromium, 60, ignored_exceptions=[WebDriverException]).until(click, selector)


def test_links_lead_to_pages_and_anchors_and_nothing_loads_from_elsewhere(site):
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    wrong = []
    for path, page in pages.items():
        # Any page may answer with 404.html, so its links begin with "/".
        base = f"http://site/{path.relative_to(site)}"
        for target in page.links + page.loads:
            url = urllib.parse.urlsplit(urllib.parse.urljoin(base, target))
            if url.netloc != "site":
                found = target in page.links
            else:
                file = site / urllib.parse.unquote(url.path).lstrip("/")
                file = file / "index.html" if file.is_dir() else file
                found = file.is_file() and (
                    file not in pages or urllib.parse.unquote(url.fragment) in pages[file].anchors
                )
            if not found:
                wrong.append(f"{path.relative_to(site)}: {target}")
    assert wrong == []


@pytest.mark.parametrize("name", ["", *_MODULES])
def test_the_reference_has_each_public_name(name, site):
    dotted = f"tf_fuse.{name}".rstrip(".")
    module = importlib.import_module(dotted)
    if hasattr(module, "__all__"):
        public = set(module.__all__) - set(_MODULES)
    else:
        named = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
        public = {name for name, one in named.items() if getattr(one, "__module__", None) == dotted}
    page = _Page(site / "docs" / "api" / name / "index.html")
    assert {f"{dotted}.{one}" for one in public} - page.anchors == set()
    assert len(public) > 1


@pytest.mark.parametrize(("scheme", "name_in_css"), [("light", "default"), ("dark", "slate")])
def test_chromium_shows_the_start_page_search_and_the_reference(
    scheme, name_in_css, address, chromium
):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chromium.get(address)
    assert chromium.title == "tf_fuse"
    assert _wait_for(chromium, "h1").text == "tf_fuse"
    _wait_for(chromium, f"body[data-md-color-scheme='{name_in_css}']")

    page = "docs/api/collectives/"
    anchor = "tf_fuse.collectives.packed_ranges"
    chromium.find_element("css selector", "input.md-search__input").send_keys("packed_ranges")
    _click(chromium, f".md-search-result__link[href$='#{anchor}']")
    assert _wait_for(chromium, f"[id='{anchor}'] .doc-object-name").text == "packed_ranges"
    assert chromium.current_url.startswith(address + page)
    assert chromium.current_url.endswith(f"#{anchor}")
    assert chromium.title == "tf_fuse.collectives - tf_fuse"

    assert [entry["message"] for entry in chromium.get_log("browser")] == []
    requested = requests_of(chromium)
    assert address in requested
    assert [url for url in requested if not url.startswith((address, "data:"))] == []
