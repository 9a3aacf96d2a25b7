"""Draw docs/figures/serve_page.svg: the page of a running `lamina serve`, its own elements and styles inside an SVG.

    lamina serve lamina-demo/checkpoints/checkpoint_best.pt &
    python tools/page_picture.py http://127.0.0.1:5000 "The doctor read the fourth chapter." docs/figures/serve_page.svg

It is text: a picture of some 20 KB, sharp at any size, whose changes can be read line by line. Needs playwright and a Chromium.
"""

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

WIDTH = 960
# What a page holds beside its markup becomes markup: typed text, chosen options, places of sliders, pictures.
SNAPSHOT = """async () => {
  const body = document.body.cloneNode(true)
  const own = s => [...document.querySelectorAll(s)], copied = s => [...body.querySelectorAll(s)]
  copied('textarea').forEach((e, n) => { e.textContent = own('textarea')[n].value })
  copied('input').forEach((e, n) => e.setAttribute('value', own('input')[n].value))
  copied('option').forEach((e, n) => e.toggleAttribute('selected', own('option')[n].selected))
  for (const image of copied('img')) {
    image.setAttribute('src', `data:image/svg+xml,${encodeURIComponent(await (await fetch(image.src)).text())}`)
  }
  for (const e of copied('[hidden], script, noscript, .skip, .visually-hidden')) e.remove()
  const rules = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])
  const isScreen = rule => !(rule instanceof CSSMediaRule) && !/:(focus|hover)/.test(rule.selectorText)
  return { body: new XMLSerializer().serializeToString(body), height: Math.ceil(document.querySelector('footer').offsetTop),
    css: rules.filter(isScreen).map(rule => rule.cssText).join('\\n') }
}"""

# A gate learned for each word has its words below it, a while after the translation.
IS_LOOKED_INTO = """!document.querySelector('#surface-note').textContent.endsWith(':')
  || document.querySelector('#surface-words small')"""


def draw(browser: Any, url: str, text: str, *, depth: int | None = None, word: int = 2, theme: str = "light") -> str:
    """The page after `text` was typed, with one word of the translation pointed at."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=theme)
    try:
        page.goto(url)
        page.fill("#source", text)
        page.wait_for_selector("#target .word")
        if depth is not None:
            page.fill("#depth", str(depth))
        page.wait_for_function("() => [...document.querySelectorAll('#ladder td:last-child')].every(e => e.textContent)")
        page.wait_for_function(f"() => {IS_LOOKED_INTO}")
        page.evaluate("document.activeElement.blur()")
        page.locator("#target .word").nth(word).hover()
        found = page.evaluate(SNAPSHOT)
    finally:
        page.close()
    size = f'viewBox="0 0 {WIDTH} {found["height"]}" width="{WIDTH}" height="{found["height"]}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} data-theme="{theme}">\n'
            f'<style><![CDATA[\n{found["css"]}\nbody {{ min-height: 0; }}\n]]></style>\n'
            f'<foreignObject width="100%" height="100%">{found["body"]}</foreignObject>\n</svg>\n')


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a running server with a translation model")
    parser.add_argument("text", help="what to translate")
    parser.add_argument("output", type=Path)
    parser.add_argument("--depth", type=int, help="stop of the slider, from 0")
    parser.add_argument("--word", type=int, default=2, help="word of the translation to point at, from 0")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    given = parser.parse_args()
    path = os.environ.get("LAMINA_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        drawn = draw(browser, given.url, given.text, depth=given.depth, word=given.word, theme=given.theme)
        browser.close()
    given.output.write_text("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()), encoding="utf-8")


if __name__ == "__main__":
    main()
