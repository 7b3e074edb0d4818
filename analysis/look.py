"""How figures look and what metrics are called: the same colour for an arm in every figure, readable in grey too."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

# Okabe and Ito's colours, for all kinds of colour vision, neighbours apart in lightness; dash and marker say it again.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#D55E00", "#56B4E9")
DASHES = ((), (5, 1.5), (5, 1.5, 1, 1.5), (1.2, 1.2), (8, 2, 1, 2, 1, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")

# metric -> (name, unit) on axes and in tables; others show their own name
WORDS = {
    "reward/mean": ("reward", "mean per answer"),
    "reward/std_pooled": ("reward spread, all answers", "standard deviation"),
    "reward/std_within_group": ("reward spread within groups", "standard deviation"),
    "reward/unscored": ("answers without a grade", "answers"),
    "accuracy/train": ("training accuracy", "share of answers"),
    "accuracy/lenient": ("training accuracy, careless checker", "share of answers"),
    "accuracy/lenient_gap": ("careless minus strict accuracy", "share of answers"),
    "accuracy/heldout_lenient": ("held-out accuracy, careless checker", "share of answers"),
    "reward/gold_gap": ("reward minus strict verdict", "mean per answer"),
    "answers/none_share": ("responses without an answer", "share"),
    "answers/failed": ("answers whose check failed", "answers"),
    "answers/timed_out": ("answers whose check was too slow", "answers"),
    "accuracy/heldout": ("held-out accuracy", "share of answers"),
    "accuracy/heldout_greedy": ("held-out accuracy, greedy", "share of problems"),
    "length/mean": ("length, all answers", "tokens"),
    "length/min": ("length, shortest answer", "tokens"),
    "length/max": ("length, longest answer", "tokens"),
    "length/correct": ("length, correct answers", "tokens"),
    "length/incorrect": ("length, incorrect answers", "tokens"),
    "length/ended": ("length, ended answers", "tokens"),
    "length/gap": ("length, incorrect minus correct", "tokens"),
    "length/truncated_share": ("truncated answers", "share"),
    "fillers/mean": ("fillers, all answers", "tokens"),
    "fillers/incorrect": ("fillers, incorrect answers", "tokens"),
    "entropy/mean": ("entropy", "nats per token"),
    "surprisal/mean": ("surprisal of drawn tokens", "nats per token"),
    "groups/zero_advantage": ("zero-advantage groups", "share"),
    "groups/zero_advantage_predicted": ("zero-advantage groups, predicted", "share"),
    "groups/all_right": ("groups all right", "share"),
    "groups/all_wrong": ("groups all wrong", "share"),
    "kl/k1": ("KL to the base policy, k1", "nats per token"),
    "kl/k3": ("KL to the base policy, k3", "nats per token"),
    "ratio/min": ("smallest ratio", "new over old probability"),
    "ratio/max": ("largest ratio", "new over old probability"),
    "ratio/first_update_deviation": ("ratio before the first update", "distance from 1"),
    "clip/binding_low": ("clipped below", "share of tokens"),
    "clip/binding_high": ("clipped above", "share of tokens"),
    "clip/outside": ("outside the clip's band", "share of tokens"),
    "gradient/norm": ("gradient norm", "2-norm before clipping"),
    "loss/total": ("loss", ""),
    "loss/policy": ("policy loss", ""),
    "loss/kl": ("KL loss", ""),
    "loss/entropy": ("entropy loss", ""),
    "learning_rate": ("learning rate", ""),
    "samples/generated": ("answers sampled", "per step"),
    "tokens/generated": ("tokens sampled", "per step"),
}
SETTINGS = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper"),
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.6,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "axes.linewidth": 0.8,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}


class Style(NamedTuple):
    """How one arm is drawn, in every figure alike."""

    colour: str
    dash: tuple
    marker: str


def arm_styles(arms: Sequence[str]) -> dict[str, Style]:
    """A look for each arm, from its place among ALL arms of the ablation; no two of the first 35 agree in colour and
    dash."""
    return {
        arm: Style(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, arm in enumerate(arms)
    }


def short_names(arms: Sequence[str]) -> tuple[dict[str, str], str]:
    """Arms without what they share, and a heading: "aggregate=a scale=none", "aggregate=b scale=none" -> a, b and
    "aggregate"."""
    words = {arm: arm.split(" ") for arm in arms}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    rest = {arm: [word for word in parts if word not in shared] for arm, parts in words.items()}
    keys = {word.partition("=")[0] for parts in rest.values() for word in parts if "=" in word}
    if len(keys) == 1 and all(len(parts) == 1 for parts in rest.values()):
        return {arm: parts[0].partition("=")[2] for arm, parts in rest.items()}, keys.pop()
    return {arm: " ".join(parts) or arm for arm, parts in rest.items()}, ""


def name_of(metric: str) -> tuple[str, str]:
    """(name, unit) of a metric; its own name and no unit if it has no better one."""
    if metric.startswith("accuracy/heldout/level_"):
        return f"held-out accuracy, level {metric.rpartition('_')[2]}", "share of answers"
    if metric.startswith("seconds/"):
        return f"seconds to {metric.partition('/')[2]}", "s per step"
    return WORDS.get(metric, (metric, ""))


def begin(sentence: str) -> str:
    """With a capital, and the capitals that it has (str.capitalize makes KL kl)."""
    return sentence[:1].upper() + sentence[1:]


def save(figure: Figure, folder: Path, name: str, vector: bool = True) -> list[Path]:
    """Write name.png (150 dots per inch, 256 colours) and, if `vector`, name.pdf; the same bytes for the same figure.
    Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.png", folder / f"{name}.pdf"]
    with rc_context(SETTINGS):
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png", dpi=150)
        Image.open(pixels).convert("RGB").quantize(256).save(
            files[0], optimize=True
        )  # a third of the size, for the repository
        if not vector:
            return files[:1]
        figure.set_layout_engine("none")  # the places found for the first file serve for the second
        figure.savefig(files[1], dpi=150, metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return files
