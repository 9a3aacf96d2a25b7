"""The page of `lamina serve` in a real browser, with a real server behind it: what is typed, moved, touched and lost."""

import re
import threading
from pathlib import Path

import pytest

from lamina.config.serve_options import ServiceLimits
from page_picture import draw
from served import running_server, train_models

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.extra

SENTENCE = "the old boat sings"
DEFAULTS = {"max_len_b": 12, "min_len": 3}  # models of twelve updates would rather say nothing
EMPTY = "The translation appears here."
WIDTHS = {"desktop": 1280, "phone": 390}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("uvicorn", reason="lamina[serve] is not installed")
    return train_models(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def server(models):
    with running_server(models.values(), names=("a-b", "lm", "masked"), defaults=DEFAULTS) as running:
        yield running


@pytest.fixture(params=WIDTHS.values(), ids=WIDTHS)
def width(request):
    return request.param


@pytest.fixture
def opened(chromium):
    """Opens pages; none of them may raise an error or ask another host."""
    contexts, wrong = [], []

    def run(url, width=1280, **options):
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: "Content Security Policy" in said.text and wrong.append(said.text))
        page.on("request", lambda asked: asked.url.startswith(url) or wrong.append(asked.url))
        page.goto(url)
        page.wait_for_selector("#connection.on")
        return page

    yield run
    for context in contexts:
        context.close()
    assert wrong == []


def own_translation(models, *depth, **options):
    model = models["translator"].prune(*depth) if depth else models["translator"]
    return model.translate(SENTENCE, **DEFAULTS, **options)


def wait_for_text(page, selector, text):
    page.wait_for_function("([selector, text]) => document.querySelector(selector).textContent === text", arg=[selector, text])


def facts(page):
    return page.text_content("#facts")


def test_a_translation_appears_while_one_types(opened, server, models, width):
    page = opened(server.url, width)
    assert page.text_content("#target").startswith(EMPTY)
    page.locator("#source").press_sequentially(SENTENCE, delay=5)
    wait_for_text(page, "#target", own_translation(models).text)
    assert re.fullmatch(r"[\d.]+ m?s · 3–2 layers · \d+ tokens/s", facts(page))
    assert page.text_content("#count") == "18 / 20,000 characters"
    page.click("#clear")
    assert page.text_content("#target").startswith(EMPTY)
    page.fill("#source", "  \n ")
    assert page.text_content("#target").startswith(EMPTY)


def test_text_on_the_way_is_not_asked_for_and_an_old_answer_is_not_shown(opened, server, models):
    page = opened(server.url)
    asked = []
    page.on("request", lambda own: own.url.endswith("/translate") and asked.append(own.post_data_json["q"]))
    page.locator("#compare summary").click()
    page.fill("#source", "a bird")
    page.fill("#source", SENTENCE)
    wait_for_text(page, "#target", own_translation(models).text)
    assert asked == [SENTENCE]


def test_the_slider_shows_text_and_time_of_each_depth(opened, server, models, width):
    page = opened(server.url, width)
    page.fill("#source", SENTENCE)
    wait_for_text(page, "#target", own_translation(models).text)
    assert page.locator("#stacks .runs").count() == 5
    page.focus("#depth")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert page.text_content("#depth-value") == "1 encoder and 1 decoder layer"
    assert page.locator("#stacks .runs").count() == 2
    wait_for_text(page, "#target", own_translation(models, 1, 1).text)
    assert "1–1 layers" in facts(page)
    rows = page.locator("#ladder tbody tr")
    page.wait_for_function("() => [...document.querySelectorAll('#ladder td:last-child')].every(e => e.textContent > 0)")
    assert rows.count() == 3
    texts = [rows.nth(place).locator("td").nth(1).text_content().strip() for place in range(3)]
    assert texts == [own_translation(models, *depth).text for depth in ((), (2, 1), (1, 1))]
    assert all(re.fullmatch(r"[\d.]+ m?s", rows.nth(place).locator(".time").text_content()) for place in range(3))
    rows.nth(0).locator("button").click()
    wait_for_text(page, "#target", own_translation(models).text)
    assert page.get_attribute("#depth", "aria-valuetext") == "3 encoder and 2 decoder layers"


def test_a_word_shows_its_source_words(opened, server, models):
    page = opened(server.url)
    page.fill("#source", SENTENCE)
    own = own_translation(models)
    wait_for_text(page, "#target", own.text)
    words = own.text.split()
    asked = {"q": SENTENCE, "source": "a", "target": "b", "alignment": True}
    aligned = server.ask("/translate", asked)[2]["hypotheses"][0]["alignment"]
    expected = [[SENTENCE.split()[place] for place in sorted(places)] for places in aligned]
    assert any(expected)
    shown = page.locator("#target .word")
    assert shown.all_text_contents() == words
    for number, sources in enumerate(expected):
        shown.nth(number).hover()
        assert page.locator("#backdrop mark").all_text_contents() == sources
        assert facts(page).startswith(f"“{words[number]}”")
    page.mouse.move(5, 5)
    assert page.locator("#backdrop mark").count() == 0
    assert "layers" in facts(page)
    # by keyboard
    page.focus("#copy")
    page.keyboard.press("Tab")
    assert page.locator("#backdrop mark").all_text_contents() == expected[0]
    page.keyboard.press("ArrowRight")
    assert page.locator("#backdrop mark").all_text_contents() == expected[1]
    page.keyboard.press("Escape")
    assert page.locator("#backdrop mark").count() == 0


def test_a_touched_word_keeps_its_source_words(opened, server, models):
    page = opened(server.url, 390, has_touch=True)
    page.fill("#source", SENTENCE)
    wait_for_text(page, "#target", own_translation(models).text)
    page.locator("#target .word").first.tap()
    assert page.locator("#backdrop mark").count() > 0
    page.locator("h1").tap()
    assert page.locator("#backdrop mark").count() == 0


def test_alternatives_open_on_click(opened, server, models):
    page = opened(server.url)
    page.fill("#source", SENTENCE)
    wait_for_text(page, "#target", own_translation(models).text)
    page.click("#more")
    page.wait_for_selector("#nbest .score")
    own = own_translation(models, beam=5, nbest=5)
    found = page.locator("#nbest li").evaluate_all("items => items.map(item => item.firstChild.textContent)")
    assert found == list(dict.fromkeys(one.text for one in (own, *own.alternatives)))
    page.click("#more")
    assert page.locator("#nbest").is_hidden()


def test_a_fused_model_shows_what_it_reads(opened, server, models):
    page = opened(server.url)
    shares = models["translator"].fusion_weights().shares
    cells = page.locator("#shares tbody td").all_text_contents()
    assert cells == [str(round(100 * share)) for row in shares[::-1] for share in row]
    page.fill("#source", SENTENCE)
    page.wait_for_selector("#surface-words small")
    words = page.locator("#surface-words span").evaluate_all("spans => spans.map(span => span.firstChild.textContent)")
    assert words == own_translation(models).text.split()
    assert all(re.fullmatch(r"\d+ %", share) for share in page.locator("#surface-words small").all_text_contents())


def test_a_lost_server_is_told_and_found_again(opened, models):
    pair = [models["translator"]]
    with running_server(pair, defaults=DEFAULTS) as first:
        page = opened(first.url)
        page.fill("#source", "a bird")
        page.wait_for_selector("#target .word")
        port = int(first.url.rpartition(":")[2])
    page.wait_for_selector("#connection.off")  # nobody typed: the page looks for itself
    assert "cannot be reached" in page.text_content("#banner")
    page.fill("#source", SENTENCE)
    page.wait_for_selector("#facts.bad")
    assert page.locator("#target.stale").count() == 1
    with running_server(pair, defaults=DEFAULTS, port=port):
        page.wait_for_selector("#connection.on")
        assert page.locator("#banner").is_hidden()
        assert page.input_value("#source") == SENTENCE
        wait_for_text(page, "#target", own_translation(models).text)


def test_too_much_text_is_told_and_not_sent(opened, models):
    with running_server([models["translator"]], defaults=DEFAULTS, limits=ServiceLimits(max_chars=40, grace=5.0)) as running:
        page = opened(running.url)
        page.fill("#source", SENTENCE)
        wait_for_text(page, "#target", own_translation(models).text)
        page.fill("#source", "boat " * 20)
        assert "too many" in page.text_content("#count")
        assert "longer than the 40 characters" in facts(page)
        assert page.locator("#target.stale").count() == 1


def test_a_slow_model_can_be_cancelled(opened, server):
    page = opened(server.url)
    is_over = threading.Event()
    page.route("**/translate", lambda route: None if not is_over.is_set() else route.continue_())
    page.fill("#source", SENTENCE)
    page.wait_for_selector("#cancel:not([hidden])")
    assert re.fullmatch(r"Still translating, \d+ s …", facts(page))
    page.click("#cancel")
    assert facts(page) == "Cancelled."
    assert page.locator("#cancel").is_hidden()
    is_over.set()
    page.fill("#source", "a bird")
    page.wait_for_selector("#target .word")


def test_a_busy_server_is_asked_again(opened, server, models):
    page = opened(server.url)
    answers = []

    def answer(route):
        answers.append(route)
        if len(answers) == 1:
            route.fulfill(status=503, headers={"Retry-After": "2"}, json={"error": "the server is busy: its queue is full."})
        else:
            route.continue_()

    page.route("**/translate", answer)
    page.fill("#source", SENTENCE)
    page.wait_for_function("() => document.querySelector('#facts').textContent.startsWith('The server is busy, waiting')")
    wait_for_text(page, "#target", own_translation(models).text)


def test_a_key_is_asked_for(opened, models):
    with running_server([models["translator"]], defaults=DEFAULTS, keys=("the-right-key-of-this-server",)) as running:
        page = opened(running.url)
        page.fill("#key", "another")
        page.click("#key-form button")
        page.fill("#source", SENTENCE)
        page.wait_for_selector("#key-form:not([hidden])")
        assert page.text_content("#key-label") == "The server does not accept this key"
        page.fill("#key", "the-right-key-of-this-server")
        page.click("#key-form button")
        wait_for_text(page, "#target", own_translation(models).text)


def test_text_is_never_taken_for_html(opened, server):
    page = opened(server.url)
    page.fill("#source", "<img src=x onerror=alert(1)> boat")
    page.wait_for_selector("#target .word")
    assert page.locator("main img").count() == 0


def test_language_models_write_and_masked_ones_fill(opened, server, models):
    page = opened(server.url)
    page.click("#tab-write")
    page.fill("#prompt", "the old")
    page.fill("#tokens", "4")
    page.click("#write-go")
    page.wait_for_function("() => /^\\d+ tokens/.test(document.querySelector('#write-facts').textContent)")
    assert page.text_content("#written").startswith("the old")
    page.click("#tab-fill")
    page.fill("#gap", "the <mask> boat")
    page.click("#fill-go")
    page.wait_for_selector("#fillings li")
    own = models["masked"].fill_mask("the <mask> boat", topk=8)
    found = page.locator("#fillings li").evaluate_all("items => items.map(item => item.firstChild.textContent)")
    assert found == [one.text for one in own]


def test_the_picture_of_the_docs_is_the_page_and_can_be_shown(opened, chromium, server, models, tmp_path):
    picture = tmp_path / "page.svg"
    picture.write_text(draw(chromium, server.url, SENTENCE), encoding="utf-8")
    assert 10_000 < picture.stat().st_size < 60_000
    for file in (picture, DOCS / "figures" / "serve_page.svg"):
        page = chromium.new_page()
        page.goto(file.as_uri())
        assert page.locator("#target .word.active").count() == 1
        assert page.locator("#ladder tbody tr").count() > 2
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_everything_can_be_read(opened, server, models, width, scheme):
    page = opened(server.url, width, color_scheme=scheme)
    page.fill("#source", f"{SENTENCE} {'boat' * 60}\n" * 3)
    page.wait_for_selector("#target .word")
    page.click("#more")
    page.wait_for_selector("#nbest .score")
    for mode in ("translate", "write", "fill"):
        page.click(f"#tab-{mode}")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), mode
    page.click("#tab-translate")
    assert page.evaluate(CONTRAST) == []
    nameless = "e => !e.labels?.length && !e.getAttribute('aria-label') && !e.textContent.trim()"
    assert page.locator("button, input, select, textarea").evaluate_all(f"all => all.filter({nameless}).map(e => e.id)") == []


# Visible text of less contrast with what lies behind it than WCAG's 4.5 : 1.
CONTRAST = """() => {
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
  const rgba = color => { context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1)
    return [...context.getImageData(0, 0, 1, 1).data] }
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, place) => sum + v * [.2126, .7152, .0722][place], 0)
  const behind = e => { for (; e; e = e.parentElement) { const own = rgba(getComputedStyle(e).backgroundColor)
    if (own[3] > 200) return own } return [255, 255, 255] }
  const poor = []
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].filter(n => n.nodeType === 3 && n.data.trim()).map(n => n.data.trim()).join(' ')
    const color = rgba(getComputedStyle(e).color)
    if (!own || !e.checkVisibility() || e.closest('.visually-hidden, #backdrop, .skip') || color[3] < 200) continue
    const [a, b] = [light(color), light(behind(e))].sort((x, y) => y - x)
    if ((a + .05) / (b + .05) < 4.5) poor.push(`${own.slice(0, 30)} ${((a + .05) / (b + .05)).toFixed(2)}`)
  }
  return poor
}"""
