"""A real browser: Debian's Chromium, or the one that LAMINA_CHROMIUM names. Without one these tests skip and say so."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Otherwise it looks for updates and its vendor's hosts at each start.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("LAMINA_CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.skip("there is no Chromium: install Debian's package chromium, or set LAMINA_CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="session")
def site_url(site):
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
