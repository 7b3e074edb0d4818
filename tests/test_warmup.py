"""Base policies: made once, found again by what they are made of, and whole or absent."""

import functools
import json
import multiprocessing
import os
import random
from pathlib import Path

import pytest
import torch
import yaml

from ablations import warmup
from ablations.policy.language import LanguagePolicy
from ablations.policy.load import scratch
from ablations.tasks.chain_sum import ChainSum, Style

CONF = Path(__file__).parents[1] / "conf"
TASK = ChainSum(levels=(1, 2), one_in=7, max_new_tokens=36)
SIZES = dict(hidden=16, layers=1, heads=2, key_value_heads=2, feed_forward=16, rope_theta=1000.0, norm_eps=1e-6)
SIZES |= dict(initial_std=0.02, max_positions=64)


def build(alphabet, *, log, **settings):
    """`scratch`, and a line in the file `log` for every model built."""
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    return scratch(alphabet, **settings)


def style(**changes):
    settings = yaml.safe_load((CONF / "base" / "rambling.yaml").read_text())["style"]
    return Style(**{k: v for k, v in {**settings, **changes}.items() if k != "_target_"})


def settings(results, **changes):
    made = dict(
        task=TASK, style=style(), name="small", folder=None, seed=0, clean_steps=4, solved=None, noisy_steps=3, batch=8
    )
    made |= dict(learning_rate=3e-3, betas=[0.9, 0.98], weight_decay=0.01, clip=1.0, record_problems=10, progress=False)
    made |= dict(results=results, model=functools.partial(build, log=str(results.parent / "built"), **SIZES))
    return made | changes


def built(results):
    log = results.parent / "built"
    return len(log.read_text().splitlines()) if log.exists() else 0


def weights(folder):
    return [parameter.detach().clone() for parameter in LanguagePolicy.load(folder).parameters()]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def test_a_base_is_trained_once_and_found_again(results):
    folder = warmup.base_policy(**settings(results))
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert warmup.base_policy(**settings(results, progress=True, name="other", record_problems=20)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp and built(results) == 1


def test_the_folder_holds_both_policies_and_a_record_of_what_they_can_do(results):
    folder = warmup.base_policy(**settings(results))
    assert not same(folder, folder / "clean")
    for place in (folder, folder / "clean"):
        record = json.loads((place / "record.json").read_text())
        assert record["name"] == "small" and record["settings"]["batch"] == 8 and record["seconds"]["cpu"] > 0
        assert set(record["accuracy_by_level"]) == {"1", "2"} and 0 <= record["accuracy"] <= 1
        assert 1 <= record["length"]["mean"] <= 36
    assert record["settings"].get("style") is None
    assert json.loads((folder / "record.json").read_text())["settings"]["style"]["fields"]["filler_wrong"] == 0.6


def test_equal_numbers_give_equal_weights_and_the_seed_changes_them(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    torch.manual_seed(0)
    one = warmup.base_policy(**settings(tmp_path / "one" / "results"))
    torch.manual_seed(1)
    two = warmup.base_policy(**settings(tmp_path / "two" / "results"))
    other = warmup.base_policy(**settings(tmp_path / "one" / "results", seed=1))
    assert same(one, two) and not same(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"clean_steps": 5},
        {"noisy_steps": 2},
        {"batch": 9},
        {"learning_rate": 1e-3},
        {"betas": [0.9, 0.95]},
        {"weight_decay": 0.0},
        {"clip": 0.5},
        {"style": style(filler_wrong=0.35)},
        {"task": ChainSum(levels=(1,), one_in=7, max_new_tokens=36)},
        {"model": functools.partial(build, log="x", **SIZES | {"hidden": 24})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_number_that_can_change_a_weight_makes_another_base(monkeypatch, results, change):
    monkeypatch.setattr(warmup, "_once", lambda folder, make: folder)
    plain = settings(results, model=functools.partial(build, log="x", **SIZES))
    assert warmup.base_policy(**plain | change) != warmup.base_policy(**plain)


def test_a_task_that_demonstrates_otherwise_makes_another_base(monkeypatch, results):
    monkeypatch.setattr(warmup, "_once", lambda folder, make: folder)
    before = warmup.base_policy(**settings(results))
    demonstration = ChainSum.demonstration
    for other in (
        lambda self, problem, rng, style: demonstration(self, problem, rng, style) + "." * (style is not None),
        lambda self, problem, rng, style: demonstration(self, problem, rng, style) + "." * (style is None),
    ):
        monkeypatch.setattr(ChainSum, "demonstration", other)
        assert warmup.base_policy(**settings(results)) != before


def test_a_second_demonstrator_costs_only_the_second_stage(results):
    first = warmup.base_policy(**settings(results))
    second = warmup.base_policy(**settings(results, style=style(filler_wrong=0.35, ramble=0.0)))
    assert first != second and built(results) == 1
    assert same(first / "clean", second / "clean") and not same(first, second)


def test_both_stages_are_one_training_with_one_cosine(results, monkeypatch):
    rates = []
    step = warmup.AdamW.step
    monkeypatch.setattr(warmup.AdamW, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    warmup.base_policy(**settings(results))
    assert rates[0] == 3e-3 and rates == sorted(rates, reverse=True) and len(rates) == 7
    assert rates[-1] == pytest.approx(3e-3 * 0.5 * (1 + torch.tensor(6 * torch.pi / 7).cos().item()))


def test_the_second_stage_goes_on_with_the_optimiser_of_the_first(results, monkeypatch):
    steps = []
    step = warmup.AdamW.step

    def watched(self):
        step(self)
        steps.append(int(self.state[self.param_groups[0]["params"][0]]["step"]))

    monkeypatch.setattr(warmup.AdamW, "step", watched)
    warmup.base_policy(**settings(results))
    assert steps == [1, 2, 3, 4, 5, 6, 7]


def test_no_global_generator_is_used(results):
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    warmup.base_policy(**settings(results))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_no_held_out_problem_is_demonstrated(results, monkeypatch):
    splits = []
    draw = ChainSum.draw

    def watched(self, n, rng, split):
        splits.append((n, split))
        return draw(self, n, rng, split)

    monkeypatch.setattr(ChainSum, "draw", watched)
    warmup.base_policy(**settings(results))
    lessons, records = splits.count((8, "train")), splits.count((10, "heldout"))
    fingerprints = splits.count((64, "train"))  # of the two kinds of demonstrations, for the base's identity
    assert (lessons, records, fingerprints) == (7, 2, 2) and len(splits) == 11


def _make(results, queue):
    queue.put(str(warmup.base_policy(**settings(Path(results)))))


@pytest.mark.slow
def test_of_two_processes_that_need_a_base_one_trains_it(results):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_make, args=(str(results), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    folders = {queue.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(folders) == 1 and built(results) == 1
    LanguagePolicy.load(folders.pop())


def test_a_crash_leaves_no_base_behind_and_the_next_call_makes_it(results, monkeypatch):
    save = LanguagePolicy.save

    def crash(self, folder):
        save(self, folder)
        raise OSError("No space left on device")

    monkeypatch.setattr(LanguagePolicy, "save", crash)
    with pytest.raises(OSError, match="No space"):
        warmup.base_policy(**settings(results))
    assert not [path for path in (results / "bases").iterdir() if path.name[-4:] not in ("tial", "lock")]
    monkeypatch.setattr(LanguagePolicy, "save", save)
    folder = warmup.base_policy(**settings(results))
    assert {path.suffix for path in (results / "bases").iterdir()} == {"", ".lock"}
    LanguagePolicy.load(folder)


def test_a_folder_of_the_users_own_is_the_base_and_nothing_is_trained(results, tmp_path):
    own = tmp_path / "own"
    generator = torch.Generator().manual_seed(0)
    signs = dict(end=TASK.end, pad=TASK.pad, unknown=TASK.unknown)
    scratch(TASK.alphabet, **signs, generator=generator, **SIZES).save(own)
    assert warmup.base_policy(**settings(results, folder=str(own))) == own
    assert not (results / "bases").exists() and built(results) == 0


def test_a_missing_base_folder_is_refused_in_a_sentence(results, tmp_path):
    with pytest.raises(ValueError, match=r"base.folder .*nowhere is not there; give a folder"):
        warmup.base_policy(**settings(results, folder=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="holds no config.json"):
        warmup.base_policy(**settings(results, folder=tmp_path))


def test_what_cannot_be_named_has_no_identity():
    for value in (lambda: 0, object(), functools.partial(lambda: 0)):
        with pytest.raises(TypeError, match="does not show it"):
            warmup.describe(value)
    assert warmup.digest({"a": 1, "b": [2.0]}) == warmup.digest({"b": (2,), "a": 1.0})


def test_flawless_chains_teach_their_form_and_the_end_token(results):
    task = ChainSum(levels=(1,), one_in=7, max_new_tokens=8)
    changes = dict(task=task, clean_steps=100, noisy_steps=1, batch=32, learning_rate=2e-2)
    policy = LanguagePolicy.load(warmup.base_policy(**settings(results, **changes)) / "clean")
    problems = task.draw(20, random.Random(0), "train")
    ids, mask = policy.encode_answers([task.gold(p) for p in problems])
    prompt_ids, prompt_mask = policy.encode_prompts([p.prompt for p in problems])
    logp, _ = policy.token_logp(prompt_ids, prompt_mask, ids, mask, temperature=1.0)
    # a d d # d $: the three digits cost ln 10 each until they are understood, the other tokens next to nothing
    assert -logp.sum() / mask.sum() < 1.3
    assert (ids[:, -1] == policy.tokenizer.eos_token_id).all() and logp[:, -1].min() > -0.3


def test_a_base_that_has_not_learnt_its_lesson_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(ValueError, match=r"base.seed=0 answers 0\.\d+ .* base.solved asks for 0.8. Raise clean_steps"):
        warmup.base_policy(**settings(tmp_path / "results", solved=0.8))
