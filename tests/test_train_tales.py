"""The trainer from end to end on a handful of sentences, with models of a few thousand parameters."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from specviz import load_pair, speculate
from tools import train_tales

STORY = (
    "Once upon a time there was a king who had three sons.\nThe eldest rode out to seek his fortune in the world.\n\n"
)


@pytest.fixture
def small(monkeypatch, tmp_path):
    for name, layers in (("TARGET", 2), ("DRAFT", 1)):
        monkeypatch.setattr(
            train_tales, name, dict(hidden_size=16, intermediate_size=16, num_hidden_layers=layers), raising=True
        )
    monkeypatch.setattr(train_tales, "CONTEXT", 64)
    monkeypatch.setattr(train_tales, "OWN_TEXT", ((1.0, 4), (0.0, 4)))
    for part in ("train", "heldout"):
        (tmp_path / "corpus" / part).mkdir(parents=True)
        (tmp_path / "corpus" / part / "book.txt").write_text(STORY * 60)
    return tmp_path


def run(folder, monkeypatch, *more):
    words = ["--corpus", folder / "corpus", "--work", folder / "work", "--out", folder / "out", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["train_tales.py", *map(str, words), "--batch", "2", *more])
    train_tales.main()


def test_from_corpus_to_a_pair_that_decodes(small, monkeypatch):
    run(small, monkeypatch, "--target-steps", "3", "--draft-steps", "2")
    target, draft = load_pair(small / "out" / "target", small / "out" / "draft")
    assert (target.layers, draft.layers, target.context) == (2, 1, 64)
    trace = speculate(target, draft, "Once upon", gamma=2, max_new_tokens=8, seed=0)
    assert len(trace.tokens) == 8 or trace.finish_reason == "eos"
    assert load_file(small / "out" / "target" / "model.safetensors")["model.norm.weight"].dtype == torch.float16
    report = json.loads((small / "work" / "report.json").read_text())
    assert report["nats"]["target"] > 0 and 0 < report["overlap"] <= 1


def test_an_interrupted_stage_goes_on_where_it_stopped(small, monkeypatch):
    """Three steps and then three more give the weights of six in one go."""
    at_once, in_parts = small, small.parent / "parts"
    (in_parts / "corpus").parent.mkdir()
    (in_parts / "corpus").symlink_to(at_once / "corpus")
    run(at_once, monkeypatch, "--target-steps", "6", "--draft-steps", "1")

    class Interrupted(Exception):
        pass

    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == 4:
            raise Interrupted
        return clip(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train_tales, "SAVE_EVERY", 3)
        patch.setattr(torch.nn.utils, "clip_grad_norm_", interrupt)
        with pytest.raises(Interrupted):
            run(in_parts, patch, "--target-steps", "6", "--draft-steps", "1")
    run(in_parts, monkeypatch, "--target-steps", "6", "--draft-steps", "1")
    name = "work/target.checkpoint.safetensors"
    for key, value in load_file(at_once / name).items():
        torch.testing.assert_close(load_file(in_parts / name)[key], value, atol=1e-5, rtol=1e-4)


def test_an_empty_corpus_is_refused_with_the_remedy(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="no train/\\*.txt there. Name another folder, or add --fetch"):
        run(tmp_path, monkeypatch)


def test_books_are_cleaned():
    raw = (
        "Header\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\n\r\n\r\nCHAPTER I\r\n\r\nIt was a dark\r\n"
        "and \u201cstormy\u201d night\u2014so they _say_.\r\n\r\n\r\n\r\nCHAPTER II\r\n\r\nThe end.\r\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\nLicence"
    )
    assert train_tales.clean_book(raw) == (
        'CHAPTER I\nIt was a dark and "stormy" night--so they say.\n\nCHAPTER II\nThe end.\n'
    )
