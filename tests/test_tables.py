"""README's tables are what the config files say, and a file that says nothing is refused."""

import re
import shutil
from pathlib import Path

import pytest

from ablations import check, tables
from ablations.build import CONF

README = CONF.parent / "README.md"
HEAD = ["# formula: A = |c|\n", "# paper: arXiv:2402.03300\n", "# peers: -\n"]


def between(text: str, name: str) -> str:
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->\n")[0]


@pytest.fixture
def conf(tmp_path):
    """A copy of the configs to spoil."""
    return Path(shutil.copytree(CONF, tmp_path / "conf"))


def test_readme_has_the_table_of_all_options():
    assert between(README.read_text(), "rooms") == tables.rooms_table() + "\n", "run `ablate-check tables write`"


@pytest.mark.slow  # composes every preset
def test_readme_has_the_table_of_all_presets():
    assert between(README.read_text(), "presets") == tables.presets_table() + "\n", "run `ablate-check tables write`"


def test_every_option_of_every_room_has_a_row():
    rows = re.findall(r"^\| `(\w+)=(\w+)`", tables.rooms_table(), re.MULTILINE)
    assert rows == [(room, path.stem) for room in tables.ROOMS for path in sorted((CONF / room).glob("*.yaml"))]


def test_a_new_option_gets_a_row(conf):
    (conf / "scale" / "mine.yaml").write_text("".join(HEAD) + "_target_: mine.scale\n_partial_: true\n")
    row = "| `scale=mine` | A = \\|c\\| | [2402.03300](https://arxiv.org/abs/2402.03300) | – |"
    assert row in tables.rooms_table(conf).splitlines()


@pytest.mark.parametrize(
    "lines",
    [[], HEAD[:2], HEAD[1:], [HEAD[1], HEAD[0], HEAD[2]], ["# formula:\n", *HEAD[1:]], ["# mine\n", *HEAD]],
    ids=["none", "two", "no formula", "another order", "empty", "not first"],
)
def test_an_option_without_its_three_lines_is_refused_by_name(conf, lines):
    path = conf / "scale" / "mine.yaml"
    path.write_text("".join(lines) + "_target_: mine.scale\n")
    with pytest.raises(tables.BadHead) as caught:
        tables.rooms_table(conf)
    assert str(path) in str(caught.value) and "`# formula: ...`, `# paper: ...` and `# peers: ...`" in str(caught.value)


def test_a_preset_without_a_paper_line_is_refused_by_name(conf):
    path = conf / "algorithm" / "grpo.yaml"
    path.write_text(path.read_text().replace("# paper:", "# source:"))
    with pytest.raises(tables.BadHead, match=f"{re.escape(str(path))} has no line `# paper: ...`"):
        tables.paper_of(path)


def test_every_row_has_as_many_cells_as_its_table_has_columns():
    """A | in a formula would start a cell."""
    for name in ("rooms", "presets"):
        lines = [line for line in between(README.read_text(), name).splitlines() if line.startswith("|")]
        cells = {len(re.split(r"(?<!\\)\|", line)) for line in lines}
        assert len(lines) > 30 and len(cells) == 1, name


def test_a_choice_is_shown_with_its_numbers_and_a_kl_with_its_place():
    row = between(README.read_text(), "presets").partition("| `deepseek_r1` |")[2].partition("\n")[0]
    assert "`clip_r1` (eps_low 10, eps_high 10)" in row and "(ddof 0, eps 1e-06)" in row
    assert row.endswith("| β 0.001, `k3`, `loss`, reference `deepseek_r1` | 16 |")


# --- the command ------------------------------------------------------------------------------------------------------

MARKERS = "# Title\n<!-- rooms -->\nold\n<!-- /rooms -->\nbetween\n<!-- presets -->\n<!-- /presets -->\nend\n"


@pytest.fixture
def readme(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "rooms_table", lambda: "| rooms |")
    monkeypatch.setattr(tables, "presets_table", lambda: "| presets |")
    path = tmp_path / "README.md"
    path.write_text(MARKERS)
    return path


def test_writing_replaces_what_is_between_the_markers_and_nothing_else(readme, capsys):
    assert tables.command(False, readme) == 1 and readme.read_text() == MARKERS
    assert "`ablate-check tables write` puts these in" in capsys.readouterr().out
    assert tables.command(True, readme) == 0
    assert readme.read_text() == (
        "# Title\n<!-- rooms -->\n| rooms |\n<!-- /rooms -->\nbetween\n"
        "<!-- presets -->\n| presets |\n<!-- /presets -->\nend\n"
    )
    assert tables.command(False, readme) == 0
    assert "| presets |" in capsys.readouterr().out


def test_a_missing_marker_or_readme_is_said(readme, capsys):
    readme.write_text(MARKERS.replace("<!-- /presets -->", ""))
    assert tables.command(True, readme) == 1
    assert "README.md has no lines <!-- presets --> and <!-- /presets -->" in capsys.readouterr().out
    assert tables.command(True, readme.with_name("nowhere.md")) == 2


def test_what_was_never_verified_is_not_printed_in_readme(readme, monkeypatch, capsys):
    assert "unverified" not in README.read_text()
    monkeypatch.setattr(tables, "rooms_table", lambda: "| 4 epochs [unverified] |")
    assert tables.command(True, readme) == 1 and readme.read_text() == MARKERS
    assert "would print something marked [unverified]" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "write"), [(["tables"], False), (["tables", "write"], True)])
def test_the_command_is_part_of_ablate_check(arguments, write, monkeypatch):
    given = []
    monkeypatch.setattr(tables, "command", lambda choice: given.append(choice) or 0)
    assert check.cli(arguments) == 0 and given == [write]
