"""Model: weights and a tokenizer, loaded from a folder, the hub or a GGUF file, or made anew."""

import contextlib
import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

from drkernel_q.errors import BadModel
from drkernel_q.settings import load_settings
from policy.model.shape import MLP_RATIO, SIZES, Size
from policy.model.tokenizer import Pieces, make_tokenizer

Dtype = Literal["auto", "float32", "bfloat16"]

#: Standard deviation of new weights times the square root of the hidden size. The usual 0.02 is for models that are
#: ten times as wide: a narrow one needed twice the tokens with it (docs/log.md).
_SPREAD = 0.6
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
#: What transformers and safetensors raise for a folder or a file that is not what it should be.
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def load_model(
    spec: str | Path, dtype: Dtype = "auto", device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load weights and tokenizer from a local folder, a GGUF file, or by a name of the Hugging Face hub.

    `auto` keeps the type that the weights were saved in. The model comes in evaluation mode. A GGUF file is dequantised
    once, to a folder of the cache.

    Raises:
        BadModel: it is not there, is broken or incomplete, or its tokenizer has no chat template.
    """
    folder = model_folder(spec)
    tokenizer = load_tokenizer(folder)
    with quiet():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        except _BROKEN as error:
            raise BadModel(f"The model {spec} cannot be loaded: {_first_line(error)}") from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise BadModel(f"The model {spec} is incomplete: it lacks {len(missing)} tensors, {missing[0]} first.")
    return cast("PreTrainedModel", model.to(device).eval()), tokenizer


def load_tokenizer(spec: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model alone.

    Raises:
        BadModel: it is not there or broken, or has no chat template.
    """
    folder = model_folder(spec)
    with quiet():
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # tokenizers raises bare Exception
            raise BadModel(f"The tokenizer of {spec} cannot be loaded: {_first_line(error)}") from error
    if tokenizer.chat_template is None:
        raise BadModel(f"The tokenizer of {spec} has no chat template, so it cannot be told what a turn is.")
    return tokenizer


def model_folder(spec: str | Path) -> str:
    """Find what transformers and vLLM load: the folder itself, the folder made of a GGUF file, or the hub's name.

    Raises:
        BadModel: nothing is there.
    """
    path = Path(spec).expanduser()
    if path.is_file():
        return str(_dequantised(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise BadModel(f"{path} is no model: it holds no config.json.")
        return str(path)
    name = str(spec)
    if path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise BadModel(f"There is no model at {path}.")
    return _from_hub(name)


def make_model(
    folder: Path,
    size: Size,
    texts: Iterable[str],
    *,
    vocabulary: int = 2048,
    context_tokens: int = 8192,
    pieces: Pieces = "words",
    seed: int = 0,
) -> Path:
    """Make a small Qwen3-shaped model with random weights, and a tokenizer trained on `texts`; save both in `folder`.

    The same arguments give the same files.

    Raises:
        BadModel: the folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BadModel(f"{folder} is not empty; name another folder for the new model.")
    tokenizer = make_tokenizer(texts, vocabulary=vocabulary, context_tokens=context_tokens, pieces=pieces)
    hidden, layers, heads, kv_heads, width = SIZES[size]
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=MLP_RATIO * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        initializer_range=_SPREAD / hidden**0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    save_model(model, tokenizer, folder)
    return folder


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a folder that transformers and vLLM load; it appears whole or not at all.

    Raises:
        BadModel: the folder holds something already, or cannot be written.
    """
    try:
        with _whole(folder) as building, quiet():
            model.save_pretrained(building)
            tokenizer.save_pretrained(building)
    except OSError as error:
        raise BadModel(f"The model cannot be saved in {folder}: {error.strerror or error}.") from error


def describe_model(spec: str | Path) -> dict[str, Any]:
    """Tell what a model is: where it lies, its shape, its parameters, and how its turns end.

    Raises:
        BadModel: as `load_model`.
    """
    model, tokenizer = load_model(spec)
    return {
        "folder": model_folder(spec),
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "layers": model.config.num_hidden_layers,
        "hidden": model.config.hidden_size,
        "vocabulary": len(tokenizer),
        "context_tokens": model.config.max_position_embeddings,
        "end_of_turn": tokenizer.eos_token,
    }


def _from_hub(name: str) -> str:
    """Return the folder of a hub's model, from the cache if it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for local in (True, False):
        with quiet(), contextlib.suppress(LocalEntryNotFoundError):
            try:
                return str(snapshot_download(name, local_files_only=local, allow_patterns=_HUB_FILES))
            except HFValidationError as error:
                raise BadModel(f"There is no model at {name}, and it is no name of the Hugging Face hub.") from error
            except HfHubHTTPError as error:
                raise BadModel(f"The Hugging Face hub does not give {name}: {_first_line(error)}") from error
    raise BadModel(f"There is no folder {name}, and the Hugging Face hub, which may have it, does not answer.")


def _dequantised(file: Path) -> Path:
    """Return the plain folder made of a GGUF file; it is made once for its content."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise BadModel(f"{file} is a file, but no GGUF file; name a folder or a .gguf file.")
        stream.seek(0)
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    folder = load_settings().cache_dir / "models" / f"{file.stem}-{digest}"
    if folder.is_dir():
        return folder
    # transformers draws the bar of this whatever it is told.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        try:
            quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        except Exception as error:  # gguf raises whatever the bytes lead to
            raise BadModel(f"The GGUF file {file} cannot be read: {_first_line(error)}") from error
    config = quantised.config
    # What was loaded stays marked as quantised, and would be taken for it when it is loaded again.
    with contextlib.suppress(AttributeError):
        del config.quantization_config
    # What a few bits became has no digits that bfloat16 would lose sight of, and takes half the room.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    save_model(plain, tokenizer, folder)
    return folder


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a folder to build in, and put it in the place of `folder` when all went well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield building
        building.chmod(0o755)
        for file in building.iterdir():
            file.chmod(0o644)  # safetensors lets nobody but the owner read; a server may be another user
        building.rename(folder)  # over an empty folder too
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and telling what the caller will be told by an error."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith(".") else f"{text}."
