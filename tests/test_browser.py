"""Pages in a real browser: nothing is cut, nothing is complained about, figures load from the file itself.

Uses the Chromium that is there. Without one these tests are skipped by name, except under continuous integration (the
variable CI), where it has to be there.
"""

import os
from pathlib import Path

import pytest
from browser import Browser, found
from PIL import Image
from synthetic import ACCURACY_CLAIM, LENGTH_CLAIM, crossing, rich, write, write_answers, write_folders, write_question

from analysis import compare, index
from analysis.report import report

pytestmark = pytest.mark.slow
CUT = """(() => {
  const wide = document.documentElement.clientWidth, out = [];
  for (const each of document.querySelectorAll('main *')) {
    const box = each.getBoundingClientRect();
    if (box.width && (box.right > wide + 1 || box.left < -1) && !each.closest('thead, input'))
      out.push(each.tagName + ' ' + (each.textContent || each.alt || '').slice(0, 40));
  }
  return out;
})()"""
BLANK = "[...document.images].filter(i => !i.naturalWidth || !i.getBoundingClientRect().width).length"
SMALL = "Math.min(...[...document.querySelectorAll('p, td, li')].map(e => parseFloat(getComputedStyle(e).fontSize)))"


@pytest.fixture(scope="module")
def browser():
    program = found()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium on a machine that must have one; install Debian's `chromium` or set CHROMIUM")
        pytest.skip("no Chromium on this machine; install Debian's `chromium`, or name one in CHROMIUM")
    opened = Browser(program)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    """A results folder with a report, a comparison and an index."""
    folder = tmp_path_factory.mktemp("pages")
    cells = rich(crossing(arms=("sequence_mean", "token_mean", "constant"), scales=("none", "group_std"), seeds=5))
    cells[3] = cells[3]._replace(state="diverged", reason="loss is NaN at step 17 " + "x" * 300)
    where = {"scale": "none"}
    given = [LENGTH_CLAIM | {"where": where}, ACCURACY_CLAIM | {"where": where}]
    for name in ("x", "y"):
        write(folder, name, cells)
        write_question(folder, name, given)
        write_folders(folder, name, cells)
        write_answers(folder, name, cells, "<script>document.title = 'broken'</script>" + "1" * 200)
    report(folder, "x")
    compare.report(folder, "x", "y")
    index.write(folder)
    return folder


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["x/report.html", "compare/x-y.html", "index.html"])
def test_nothing_is_cut_nothing_is_complained_about_and_every_figure_is_there(browser, pages, name, width, tmp_path):
    browser.open(pages / name, width)
    browser.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    browser.screenshot(tmp_path / "shot.png")
    assert browser.complaints() == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(CUT) == []
    assert browser.ask("document.images.length") > 0 and browser.ask(BLANK) == 0
    assert browser.ask(SMALL) >= 12
    assert browser.ask("document.title") != "broken"
    with Image.open(tmp_path / "shot.png") as shot:
        assert shot.height >= 900 and len(shot.convert("L").getcolors()) > 50


def test_a_figure_can_be_enlarged_on_a_narrow_screen(browser, pages):
    browser.open(pages / "x/report.html", 390)
    width = "document.images[0].getBoundingClientRect().width"
    before = browser.ask(width)
    browser.ask("document.querySelector('figure input').click()")
    assert before < 390 and browser.ask(width) > 600
    assert browser.ask("document.documentElement.scrollWidth") <= 390


def test_the_check_sees_what_is_cut_and_what_is_complained_about(browser, tmp_path):
    """The same questions to a page that is wrong in every way."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<main><p style='width:2000px'>wide</p><img src='missing.png' width=9></main>"
        "<script>console.error('no'); fetch('http://127.0.0.1:9/').catch(() => 0); undefinedName()</script>"
    )
    browser.open(bad, 390)
    assert browser.ask(CUT) and browser.ask(BLANK) == 1
    said = " ".join(browser.complaints())
    assert "no" in said and "127.0.0.1:9" in said and "Uncaught" in said
