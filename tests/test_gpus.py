"""Which GPU a run gets; no GPU is needed to hand them out."""

import contextlib
import multiprocessing
import os
import signal

import pytest

from ablations import gpus


def test_runs_spread_over_the_gpus_and_a_third_shares_with_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    with contextlib.ExitStack() as stack:
        seen = []
        for _ in range(5):
            os.environ["CUDA_VISIBLE_DEVICES"] = "4, 7"
            seen.append(stack.enter_context(gpus.one(tmp_path)))
            assert os.environ["CUDA_VISIBLE_DEVICES"] == seen[-1]
    assert seen == ["4", "7", "4", "7", "4"]


def test_a_gpu_that_is_given_back_is_the_next_one_given(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for _ in range(3):
        with gpus.one(tmp_path) as name:
            assert name == "0"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("devices", ["", "3"])
def test_with_no_choice_nothing_is_touched(tmp_path, monkeypatch, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    with gpus.one(tmp_path / "locks") as name:
        assert name is None and os.environ["CUDA_VISIBLE_DEVICES"] == devices
    assert not (tmp_path / "locks").exists()


def holds(folder, ready):
    with gpus.one(folder):
        ready.set()
        signal.pause()


def test_a_run_that_is_killed_keeps_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    ready = multiprocessing.get_context("fork").Event()
    process = multiprocessing.get_context("fork").Process(target=holds, args=(tmp_path, ready))
    process.start()
    assert ready.wait(30)
    with gpus.one(tmp_path) as name:
        assert name == "1"
    process.kill()
    process.join()
    with gpus.one(tmp_path) as name:
        assert name == "0"
