"""Every page of the documentation site in a real browser: nothing is cut, lost or fetched from elsewhere."""

import contextlib
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.extra

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md"))
NOTEBOOKS = sorted(f"examples/{path.stem}.html" for path in (DOCS.parent / "examples").glob("*.ipynb"))
WIDTHS = (1280, 390)
# Elements that stick out of the window and do not lie in something that scrolls in sight.
CUT = """() => {
  const wide = document.documentElement.clientWidth
  const scrolls = e => { for (; e && e !== document.body; e = e.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || getComputedStyle(e).position === 'fixed') return true
    return false }
  return [...document.querySelectorAll('.md-content *')].filter(e => e.getBoundingClientRect().right > wide + 1 && !scrolls(e))
    .slice(0, 3).map(e => e.tagName + ': ' + e.textContent.slice(0, 60))
}"""
# Code that scrolls, and options that are broken over two lines.
BROKEN = """() => [...document.querySelectorAll('pre code')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .concat([...document.querySelectorAll('.whole')].filter(e => e.getClientRects().length > 1))
  .map(e => e.textContent.slice(0, 60))"""
# Tables that are wider than their column. Reference tables may be, and then scroll.
WIDE = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.trim().slice(0, 60))"""
REFERENCE = re.compile(r"^(options|reference/|migrating|fairseq-options|compatibility|results)")


@pytest.fixture(scope="module", params=WIDTHS)
def window(chromium, request):
    context = chromium.new_context(viewport={"width": request.param, "height": 900})
    page = context.new_page()
    page.fetched, page.failed = [], []
    page.on("request", lambda request: page.fetched.append(request.url))
    page.on("response", lambda answer: answer.status >= 400 and page.failed.append(answer.url))
    page.on("pageerror", lambda error: page.failed.append(str(error)))
    yield page
    context.close()


@pytest.mark.parametrize("is_served", [True, False], ids=["http", "disk"])
def test_search_works_without_a_network(chromium, site, site_url, is_served):
    from playwright.sync_api import TimeoutError

    page = chromium.new_page()
    page.goto(f"{site_url}/index.html" if is_served else (site / "index.html").as_uri())
    found = page.locator(".md-search-result__link").first
    query = page.locator("[data-md-component=search-query]")
    for _ in range(12):  # what is typed before the index is read is lost
        query.fill("")
        query.press_sequentially("LayerDrop")  # by keys, which the search listens to
        with contextlib.suppress(TimeoutError):
            found.wait_for(state="attached", timeout=5000)
            break
    assert "layerdrop" in found.get_attribute("href").lower()
    page.close()


@pytest.mark.parametrize("name", [*PAGES, *NOTEBOOKS])
def test_a_page_is_whole_at_both_widths(window, site_url, name):
    window.fetched.clear()
    window.failed.clear()
    window.goto(f"{site_url}/{name}", wait_until="load")
    assert window.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "scrolls sideways"
    assert window.evaluate(CUT) == []
    assert window.evaluate(BROKEN) == []
    assert window.failed == []
    assert [url for url in window.fetched if not url.startswith((site_url, "data:", "blob:"))] == []
    pictures = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    assert window.evaluate(pictures) == []
    if window.viewport_size["width"] >= 1280 and not REFERENCE.match(name):
        assert window.evaluate(WIDE) == []


@pytest.mark.parametrize("name", [*PAGES, *NOTEBOOKS])
def test_no_link_of_a_page_is_broken(site, name):
    page = (site / name).read_text(encoding="utf-8")
    for target in re.findall(r'(?:href|src)="([^"#?]+)', page):
        if not re.match(r"[a-z]+:|//", target):
            assert (site / name).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_of_a_page_is_shown(site, name):
    source = (DOCS / name).with_suffix(".md").read_text(encoding="utf-8")
    article = (site / name).read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    assert article.count("<img ") == len(re.findall(r"!\[[^\]]*\]\(", source))


@pytest.mark.parametrize("name", PAGES)
def test_no_word_of_a_page_vanishes_as_a_tag(site, name):
    """A symbol such as `</s>` that is not escaped is taken for HTML, and not seen."""
    assert re.findall(r"</?(?:s|pad|unk|mask|lang|Lua\w*|FILE|[A-Z]+)>", (site / name).read_text(encoding="utf-8")) == []


def test_code_is_highlighted_and_can_be_copied(chromium, site_url):
    page = chromium.new_page()
    page.goto(f"{site_url}/own-data.html")
    assert page.locator(".highlight pre span").count() > 20
    assert page.locator(".highlight [data-clipboard-target], .highlight .md-code__button").count() > 0
    page.close()
