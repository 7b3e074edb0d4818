"""The report as one file of HTML: complete, self-contained, and unable to run anything that a run said."""

import base64
import re
from html.parser import HTMLParser

import pytest
from synthetic import LENGTH_CLAIM, crossing, rich, write, write_answers, write_folders, write_question

from analysis import html, page
from analysis.page import Bullets, Fold, Heading, Link, Source, Strong, Table, text
from analysis.report import report

NASTY = '<script>alert("1")</script><img src=x onerror=alert(2)> [a](javascript:alert(3)) {{ 7*7 }} $x^$ & "quoted"'


class Tags(HTMLParser):
    """Every start tag with its attributes, and all text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """A report in which everything that can come from a run holds markup -> (folder, report.html)."""
    folder = tmp_path_factory.mktemp("nasty")
    cells = rich(crossing(arms=("sequence_mean", f"constant{NASTY}"), seeds=5, steps=12))
    cells[-1] = cells[-1]._replace(state="diverged", reason=NASTY)
    for cell in cells:
        cell.points[f"odd{NASTY}"] = {0: 1.0, 12: 2.0}
    claim = LENGTH_CLAIM | {"says": NASTY, "paper": NASTY, "window": [5, 12]}
    claim |= {"compare": {"aggregate": ["sequence_mean", f"constant{NASTY}"]}}
    write(folder, "x", cells)
    write_question(folder, "x", [claim], question=NASTY, paper=NASTY)
    write_folders(folder, "x", [cell._replace(knobs=cell.knobs | {"aggregate": "a"}) for cell in cells])
    complete = [cell for cell in cells if "<" not in cell.slug]
    write_answers(folder, "x", complete, NASTY)
    report(folder, "x")
    return folder / "x", (folder / "x" / "report.html").read_text()


def test_whatever_comes_from_a_run_stays_text(nasty):
    read = Tags(nasty[1])
    assert not {tag for tag, _ in read.tags} & {"script", "iframe", "object", "embed", "form", "base"}
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    links = [attributes["href"] for tag, attributes in read.tags if tag == "a"]
    assert all(link.startswith("https://arxiv.org/") for link in links)
    assert NASTY in "".join(read.texts) and "49" not in re.findall(r"\{\{.*?\}\}|49", "".join(read.texts))


def test_a_sampled_answer_with_a_script_tag_is_shown(nasty):
    shown = [t for t in Tags(nasty[1]).texts if 'alert("1")' in t]
    assert shown and "<script>" not in nasty[1] and (nasty[0] / "data" / "answers.csv").read_text().count("alert") > 0


def test_the_file_needs_no_network_and_no_other_file(nasty):
    read = Tags(nasty[1])
    sources = [a[name] for _, a in read.tags for name in ("src", "srcset", "data") if name in a]
    assert sources and all(source.startswith("data:image/png;base64,") for source in sources)
    assert not re.search(r"url\(|@import", nasty[1].split("</style>")[0])
    first = base64.b64decode(sources[0].partition(",")[2])
    assert first == (nasty[0] / "figures" / "claims.png").read_bytes()
    policy = next(a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_a_caption_keeps_the_capitals_of_its_metrics(nasty):
    assert "KL to the base policy, k3" in nasty[1] and "l to the base policy" not in nasty[1]


def test_the_number_of_a_claim_stays_on_one_line(tmp_path):
    shown = html.page("t", [Table(["", "claim"], [(10, "says")], main=1)], tmp_path)
    assert '<td class="short" data-label="">10</td>' in shown


def test_both_forms_of_the_report_say_the_same(nasty):
    titles = [line.lstrip("# ") for line in (nasty[0] / "report.md").read_text().splitlines() if line.startswith("#")]
    assert titles == re.findall(r"<h[123]>(.*?)</h", nasty[1])
    assert len(titles) >= 9


def test_markdown_cannot_be_given_a_tag_a_link_or_a_picture(nasty):
    text_ = (nasty[0] / "report.md").read_text()
    assert "<script" not in text_ and "<img" not in text_ and "](javascript" not in text_


def test_every_kind_of_block_has_both_forms(tmp_path):
    blocks = [
        Heading("a < b", 1),
        text(Strong("c"), " d & e ", Link("f", "https://g")),
        Bullets([["h"], [Strong("i")]]),
        Table(["j", "k"], [["l | m", 1]]),
        Fold("n", [Source("o\n`p`", "sh")]),
    ]
    assert page.markdown(blocks) == (
        "# a &lt; b\n\n**c** d &amp; e [f](https://g)\n\n- h\n- **i**\n\n| j | k |\n| --- | --- |\n| l \\| m | 1 |\n\n"
        "<details><summary>n</summary>\n\n```sh\no\n`p`\n```\n\n</details>"
    )
    made = html.page("t", blocks, tmp_path)
    for part in ("<h1>a &lt; b</h1>", "<strong>c</strong> d &amp; e <a href=\"https://g\">f</a>", "<li>h</li>"):
        assert part in made
    assert 'data-label="j">l | m</td>' in made and "<summary>n</summary>" in made and "<pre>o\n`p`</pre>" in made


def test_a_fence_in_the_text_does_not_end_the_block():
    assert page.markdown([Source("```\nx", "")]).startswith("````\n```\nx")


def test_a_finished_report_never_reloads_itself(nasty, tmp_path):
    assert 'http-equiv="refresh"' not in nasty[1]
    assert '<meta http-equiv="refresh" content="30">' in html.page("t", [], tmp_path, refresh=30)
