"""The bundled pair: its files are complete, it loads and decodes, and transformers itself can use it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.zoo.pairs import CHECKPOINTS, choose_device, load_model

FOLDER = CHECKPOINTS / "tales"
BLOCKS = json.loads((Path(__file__).parent.parent / "benchmarks" / "data" / "heldout.json").read_text())


@pytest.fixture(scope="module")
def pair():
    return load_pair("tales", device="cpu")


@pytest.fixture(scope="module")
def prompts(pair):
    return [pair[0].tokenizer.encode(block["text"])[:64] for block in BLOCKS]


# --- the files ----------------------------------------------------------------------------------


def test_the_folder_is_small_half_precision_and_free_of_pickles():
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 18e6
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md"}
    for name in ("target", "draft"):
        with safe_open(FOLDER / name / "model.safetensors", "pt") as weights:
            assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"F16"}


def test_shapes_suit_teaching(pair):
    target, draft = pair
    assert target.model.num_parameters() <= 8e6
    assert draft.layers == 1 and target.layers >= 9 * draft.layers
    assert target.vocab_size == draft.vocab_size == 2048
    assert target.context == draft.context >= 512
    assert target.model.config.model_type == draft.model.config.model_type == "llama"
    assert target.tokenizer.vocabulary == draft.tokenizer.vocabulary
    assert target.eos == draft.eos and len(target.eos) == 1


def test_the_model_card_states_what_it_must():
    card = (FOLDER / "README.md").read_text().lower()
    for word in ("data", "parameters", "training time", "nats", "α", "c =", "licence", "public domain"):
        assert word in card, word


def test_held_out_prompts_are_the_first_long_blocks_of_two_books():
    assert len(BLOCKS) == 50 and all(len(block["text"]) == 1500 for block in BLOCKS)
    assert [sum(b["book"] == book for b in BLOCKS) for book in ("English-Fairy-Tales", "The-Pink-Fairy-Book")] == [
        25,
        25,
    ]


# --- decoding -----------------------------------------------------------------------------------


def test_a_tale(pair):
    trace = speculate(*pair, "Once upon a time", gamma=4, max_new_tokens=64, seed=0)
    assert trace.prompt == "Once upon a time"
    assert len(trace.tokens) == 64 or trace.finish_reason == "eos"
    assert (
        b"".join(trace.pieces[i] for i in trace.tokens if i not in trace.eos).decode("utf-8", "replace") == trace.text
    )


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "bar"), [(1.0, 0.68), (0.0, 0.62)])
def test_acceptance_on_held_out_prompts_reaches_the_bar(pair, prompts, temperature, bar):
    """The full measurement (benchmarks/alpha.py), seeded; about 4,000 tested drafts, standard error 0.008."""
    traces = speculate(
        *pair, prompts, gamma=4, max_new_tokens=64, sampling=SamplingParams(temperature), eos=(), seed=0, record="none"
    )
    rounds = [round for trace in traces for round in trace.rounds]
    assert sum(r.accepted for r in rounds) / sum(r.tested for r in rounds) >= bar


@pytest.mark.slow
def test_greedy_speculative_equals_greedy_plain_in_float64(prompts):
    target, draft = load_pair("tales", device="cpu", dtype=torch.float64)
    greedy = dict(max_new_tokens=40, sampling=SamplingParams(temperature=0), seed=0, record="none")
    plain = [trace.tokens for trace in autoregress(target, prompts[:8], **greedy)]
    for gamma in range(1, 9):
        assert [t.tokens for t in speculate(target, draft, prompts[:8], gamma=gamma, **greedy)] == plain


def test_the_target_as_its_own_draft_is_never_rejected(prompts):
    target, _ = load_pair("tales", device="cpu", dtype=torch.float64)
    for trace in speculate(target, target, prompts[:5], gamma=4, max_new_tokens=40, seed=0, eos=(), record="none"):
        assert all(len(r.tokens) == 5 for r in trace.rounds if r.gamma_used == 4)


@pytest.mark.slow
def test_recorded_p_and_q_equal_fresh_forwards(pair, prompts):
    target, draft = pair
    for trace in speculate(target, draft, [p[:20] for p in prompts[:6]], gamma=4, max_new_tokens=60, seed=1):
        text = list(trace.prompt_tokens)
        for round in trace.rounds:
            ids = torch.tensor([text + round.draft_tokens])
            with torch.no_grad():
                p, q = (model.model(ids).logits[0, len(text) - 1 :].softmax(-1) for model in pair)
            for i, kept in enumerate(round.p):
                torch.testing.assert_close(torch.tensor(kept.probs), p[i, kept.ids], atol=1e-4, rtol=0)
            for i, kept in enumerate(round.q):
                torch.testing.assert_close(torch.tensor(kept.probs), q[i, kept.ids], atol=1e-4, rtol=0)
            text += round.tokens


def test_transformers_itself_loads_both_and_assists():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target, draft = (AutoModelForCausalLM.from_pretrained(FOLDER / n, dtype=torch.float32) for n in ("target", "draft"))
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "target")
    inputs = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
    settings = dict(max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    assisted = target.generate(**inputs, assistant_model=draft, **settings)
    assert assisted.tolist() == target.generate(**inputs, **settings).tolist()
    assert assisted.shape[1] == inputs.input_ids.shape[1] + 24


# --- bad input ----------------------------------------------------------------------------------


def test_unknown_names_and_devices_are_refused():
    with pytest.raises(ValueError, match=r"pair 'tails' is unknown: the bundled ones are \['tales'\]"):
        load_pair("tails")
    with pytest.raises(ValueError, match="device='gpu0' cannot be used here"):
        choose_device("gpu0")
    with pytest.raises(ValueError, match="device=None cannot be used here"):
        load_pair("tales", device=None)
    for dtype in ("foo", torch.int8):
        with pytest.raises(ValueError, match="dtype=.*must be a floating-point torch dtype"):
            load_pair("tales", dtype=dtype)
    with pytest.raises(ValueError, match="a bundled pair is loaded by its name alone"):
        load_pair("tales", "tales")
    with pytest.raises(ValueError, match="checkpoint folder .* does not exist"):
        load_model(FOLDER.resolve() / "missing", "cpu")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_folders_are_refused(tmp_path, file):
    shutil.copytree(FOLDER / "draft", tmp_path / "draft")
    (tmp_path / "draft" / file).unlink()
    with pytest.raises(ValueError, match=f"is incomplete: {file} missing"):
        load_model(tmp_path / "draft", "cpu")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_folders_are_refused(tmp_path, file):
    shutil.copytree(FOLDER / "draft", tmp_path / "draft")
    content = (tmp_path / "draft" / file).read_bytes()
    (tmp_path / "draft" / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cannot be loaded.*the folder is damaged"):
        load_model(tmp_path / "draft", "cpu")


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path):
    shutil.copytree(FOLDER / "draft", tmp_path / "draft")
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    (tmp_path / "draft" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match="does not fit its config.json.*missing_keys"):
        load_model(tmp_path / "draft", "cpu")


def test_code_that_comes_with_a_checkpoint_is_never_run(tmp_path, monkeypatch):
    shutil.copytree(FOLDER / "draft", tmp_path / "draft")
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    remote = dict(model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"})
    (tmp_path / "draft" / "config.json").write_text(json.dumps({**config, **remote}))
    (tmp_path / "draft" / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever asks is told yes
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_model(tmp_path / "draft", "cpu")
    assert not (tmp_path / "ran").exists()


def test_pairs_with_different_tokenizers_are_refused(tmp_path):
    shutil.copytree(FOLDER / "draft", tmp_path / "draft")
    tokenizer = json.loads((tmp_path / "draft" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[300:302]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="different tokenizers"):
        load_pair(FOLDER / "target", tmp_path / "draft", device="cpu")
