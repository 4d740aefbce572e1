"""A real browser, and the built pages on a server of their own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from printed import NO_BROWSER, launched

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
PARSE = {"test_generated", "test_html"}  # the same pages, which they keep


class Server(ThreadingHTTPServer):
    """A server with room for all that a page asks for at once."""

    request_queue_size = 128


class Quiet(SimpleHTTPRequestHandler):
    """A handler that keeps its log to itself, and its connections open."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process have all tests of a visited page, of any other file, of what reads HTML."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        group = parameters["visit"][1] if "visit" in parameters else item.path.stem
        group = "parsed pages" if group in PARSE else group
        item.add_marker(pytest.mark.xdist_group(group))
        if item.originalname == "test_nobody_is_shut_out" and group not in item.module.OF_EACH_KIND:
            item.add_marker(pytest.mark.everything)


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The address of the built site, without a slash at its end."""
    handler = partial(Quiet, directory=str(SITE))
    with Server(("localhost", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Playwright's own Chromium, or the system's."""
    with sync_playwright() as playwright:
        if (chromium := launched(playwright)) is None:
            pytest.skip(NO_BROWSER)
        yield chromium
        chromium.close()


@pytest.fixture
def quick(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Opens windows in which formulas stay as they are written: a chapter's take seconds to set."""
    with ExitStack() as windows:

        def open_window(**options: Any) -> BrowserContext:
            context = windows.enter_context(browser.new_context(**options))
            context.route("**/mathjax/**", lambda route: route.abort())
            return context

        yield open_window
