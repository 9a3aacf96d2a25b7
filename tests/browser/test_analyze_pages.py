"""Pages of `lamina analyze` in a real browser: whole on a phone, readable in the dark, with something to conclude."""

import pytest

from lamina.cli import main
from tiny import TINY_FLAGS, make_data

pytestmark = pytest.mark.extra


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyzed")
    data = make_data(folder)
    fused = ["--encoder-layers", "3", "--transparent-attention", "--surfacefusion", "att", "--sf-gate", "0"]
    assert main(["train", str(data), *TINY_FLAGS, *fused, "--max-update", "2", "--save-dir", str(folder / "run")]) == 0
    checkpoint = str(folder / "run" / "checkpoint_last.pt")
    assert main(["analyze", "fusion", checkpoint, str(data), "--gen-subset", "train", "--max-tokens", "40", "--out",
                 str(folder / "fusion"), "--cpu"]) == 0
    assert main(["analyze", "depth", "--arch", "tiny", "--sub-layers", "4,8", "--repeats", "1", "--out", str(folder / "depth"),
                 "--cpu"]) == 0
    return folder


@pytest.mark.parametrize("name", ["fusion", "depth"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_page_is_whole_and_concludes(chromium, pages, name, width, scheme):
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto((pages / name / "index.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator("section").count() == page.locator("nav li").count() > 3
    assert page.locator("section:has(img) .conclusion").count() == page.locator("section:has(img)").count()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(27, 31, 39)")
    assert "()" not in page.text_content("pre")
    context.close()
