"""Every number in README and in results/README.md comes from a committed summary or from a setting, and is that one."""

import re

import pandas as pd
import pytest
import torch
from composing import composed
from hydra.utils import instantiate

from ablations.build import CONF, plain
from ablations.policy import memory
from ablations.tasks.chain_sum import ALPHABET, END, PAD, UNKNOWN
from analysis import words
from analysis.claims import read_question, verdicts
from analysis.load import load

ROOT = CONF.parent
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text()
COUNTED = {2: "two", 3: "three", 5: "five", 10: "ten"}


def answer() -> str:
    """What README says of the committed crossing, from its claims.csv."""
    table = pd.read_csv(RESULTS / "length_bias" / "claims.csv")
    row = table.iloc[0]
    assert (row.metric, row.x, row.y) == ("length/incorrect", "sequence_mean", "constant")
    return (
        f"the claim at equal accuracy is {row.verdict}: incorrect answers are {row.difference:.2f} tokens longer under "
        f"the mean over each answer's"
        f" own tokens than under the constant, 95 % interval [{row.low:+.2f}, {row.high:+.2f}], {row['n']} pairs, "
        f"Holm-adjusted p {words.p_value(row.p_holm, '= ')}"
    )


def tally(name: str) -> str:
    verdicts = pd.read_csv(RESULTS / name / "claims.csv").verdict.replace({"null result": "null"}).value_counts()
    return f"of {verdicts.sum()} claims " + ", ".join(f"{verdicts[v]} {v}" for v in words.MEANING if v in verdicts)


def memory_of_the_gpu_command() -> str:
    """What README says of Qwen2.5-0.5B on one GPU, from the calculation and the command's own settings."""
    command = re.search(r"ablate model=hub model\.name=Qwen/Qwen2\.5.*?steps=\d+", README, re.S)[0]
    given = {key: int(value) for key, value in re.findall(r"(?:rollout|update)\.(\w+)=(\d+)", command)}
    sizes = dict(hidden=896, layers=24, heads=14, key_value_heads=2, head=64, feed_forward=4864)
    shape = memory.Shape(parameters=494_032_768, vocabulary=151_936, **sizes)
    rows = given["prompts"] * given["group_size"]
    settings = dict(tokens=given["tokens_per_micro_batch"], rows=rows, length=768, bytes_each=4)
    whole = memory.training(shape, recompute=True, reference=True, **settings)
    kept = memory.training(shape, recompute=False, reference=True, **settings).total
    low_rank = memory.training(shape, recompute=True, reference=False, trained=8_798_208, **settings).total
    parts = [f"{value / 1e9:.1f}" for value in (whole.total, *whole[:5], kept, low_rank)]
    return (
        "that needs {} GB in float32: {} of weights, {} of gradients, {} of Adam's moments, {} of the reference, {} "
        "for a micro-batch, most of it logits. Without recomputing it would be {} GB, and with {} GB"
    ).format(*parts)


def prose(text: str) -> str:
    """Text without code, tables, links and numbers of papers, in one line."""
    text = re.sub(r"```.*?```|<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.S)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    text = re.sub(r"`[^`]*`|\[?arXiv:\d+\.\d+\]?(\(\S+\))?|\]\([^)]*\)|^\d\. ", "", text, flags=re.M)
    return " ".join(text.split())


def demo() -> dict:
    return plain(composed("ablation=length_bias", "budget=demo"))["crossing"]["demo"]


SAID = prose(README)
# what README says -> where it comes from
FOUND = {
    answer(): "results/length_bias/claims.csv",
    tally("length_bias"): "results/length_bias/claims.csv",
    f"puts {len(pd.read_csv(RESULTS / 'oracles' / 'summary.csv'))} predictions": "results/oracles/summary.csv",
    memory_of_the_gpu_command(): "ablations/policy/memory.py",
    f"({len(list((ROOT / 'tests' / 'reference').glob('*.json')))} cases": "tests/reference",
}
# numbers that are settings, levels and rules, not findings
RULES = {
    "Python 3.11": "pyproject.toml",
    "85,000 parameters": "conf/model/tiny.yaml",
    "Qwen2.5-0.5B": "a name",
    "the 95 % interval": "a level",
    "95 % t intervals": "a level",
    "nominally 95 %, it covers 82 % of the time with five seeds": "tests/test_bootstrap.py",
    "decides at .05": "analysis/claims.py",
    "its 90 % interval": "a level",
    "Row 0 is": "an index",
    "1 and 1.0 are one run": "an example",
    "exit code is 0 only": "an exit code",
    "exit code is then 1": "an exit code",
    "The exit code is 1 if a prediction fails and 2 if": "exit codes",
    "4 standard errors": "a level",
    "p (1 - p)": "a formula",
}


@pytest.mark.parametrize("sentence", FOUND, ids=FOUND.values())
def test_a_finding_in_readme_is_the_number_of_its_summary(sentence):
    assert sentence in SAID


def test_no_number_of_readme_is_without_a_source():
    rest = SAID
    for known in (*FOUND, *RULES):
        assert known in rest, f"README no longer says {known!r}; take it off this list"
        rest = rest.replace(known, "")
    left = [rest[max(0, m.start() - 40) : m.end() + 20] for m in re.finditer(r"(?<![\w-])[\d.,]*\d(?!\w)", rest)]
    assert not left, "give each a source in FOUND or RULES"


def test_the_size_of_the_demo_is_that_of_its_crossing():
    crossing = demo()
    seeds = [int(part) for part in re.findall(r"\d+", str(crossing["seed"]))]
    runs = (seeds[1] - seeds[0]) * len(crossing["aggregate"].split(","))
    assert "ten GRPO runs: the loss normalised" in README and runs == 10
    assert f"{COUNTED[seeds[1] - seeds[0]]} seeds each" in SAID
    bases = {10 + seed % 3 for seed in range(*seeds)} if crossing["base"] == "rambling" else set()
    assert f"It trains {COUNTED[len(bases)]} base policies" in SAID


def test_the_models_size_is_the_one_that_is_said():
    made = instantiate(composed().model)(
        alphabet=ALPHABET, end=END, pad=PAD, unknown=UNKNOWN, generator=torch.Generator()
    )
    assert round(sum(weight.numel() for weight in made.parameters()), -3) == 85_000


def test_the_results_page_has_every_committed_report_and_its_tally():
    page = (RESULTS / "README.md").read_text()
    for file in sorted(RESULTS.glob("*/report.md")):
        name, question = file.parent.name, None
        if (file.parent / "ablation.yaml").is_file():
            question = read_question(RESULTS, name)
        first = question.ablation if question and question.name.endswith("_replication") else name
        row = next(line for line in page.splitlines() if line.startswith(f"| [{first}]({first}/report.md)"))
        if (file.parent / "claims.csv").is_file() and question:
            assert tally(name) in row and question.question in row and f"{name}/report.md" in row
    by_hand = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", page, flags=re.S)
    assert not re.findall(r"\d", re.sub(r"\[[^]]*\]|\([^)]*\)|`[^`]*`", "", by_hand))


def test_the_committed_crossing_has_the_data_that_its_report_is_made_from():
    folder = RESULTS / "length_bias"
    assert (folder / "data" / "curves.parquet").is_file() and (folder / "report.html").is_file()
    stored, question = load(RESULTS, "length_bias"), read_question(RESULTS, "length_bias")
    table, committed = verdicts(stored, question).table, pd.read_csv(folder / "claims.csv")
    assert len(stored.runs) == len(question.cells) == 96
    assert table.difference.tolist() == pytest.approx(committed.difference.tolist(), rel=1e-5)
    assert table.verdict.replace({"null": "null result"}).tolist() == committed.verdict.tolist()
