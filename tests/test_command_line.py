"""python -m specviz: the table and the verdict, the files, and one line for whatever is wrong."""

import argparse
import re
import runpy
import subprocess
import sys

import pytest

from specviz import __main__ as command_line
from specviz import speedup
from specviz.__main__ import main
from specviz.speedup import Profile

TINY = ["--gammas", "1,2", "--max-new-tokens", "6", "--runs", "1"]


def shell(*arguments):
    command = [sys.executable, "-m", "specviz", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, encoding="utf-8")


@pytest.mark.slow
def test_a_named_pair_in_the_shell(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The old king\n\n  Es war einmal ein Müller  \nOnce upon a time\n", encoding="utf-8")
    files = [tmp_path / "profile.json", tmp_path / "page.html"]
    done = shell("profile", "tales", "--prompts", prompts, *TINY, "--json", files[0], "--html", files[1])
    assert done.returncode == 0, done.stderr
    profile = Profile.from_json(files[0].read_text(encoding="utf-8"))
    assert (profile.target, profile.prompts, list(profile.speedups)) == ("tales-target", 3, [1, 2])
    assert done.stdout == profile.report() + "\n"
    assert "<title>Speedup explorer</title>" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted([prompts, *files])  # nothing half-written is left


def test_the_shell_learns_that_something_was_wrong(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["specviz", "profile", "tales", "--runs", "0"])
    monkeypatch.delitem(sys.modules, "specviz.__main__")  # run anew, without a warning that it was imported
    with pytest.raises(SystemExit) as end:
        runpy.run_module("specviz", run_name="__main__")
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == ""
    assert err == "python -m specviz profile: error: runs=0: must be an integer >= 1.\n"


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m specviz") and "does speculation pay here" in out


@pytest.fixture
def asked(monkeypatch):
    """What profile() is asked for; it answers with the bundled profile."""
    seen = {}

    def answer(target, drafter, prompts, **settings):
        seen.update(settings, target=target, drafter=drafter, prompts=prompts)
        return Profile.bundled()

    monkeypatch.setattr(speedup, "profile", answer)
    return seen


def test_defaults(asked, capsys):
    assert main(["profile", "tales"]) == 0
    assert asked["gammas"] == list(range(1, 9)) and (asked["max_new_tokens"], asked["runs"], asked["seed"]) == (
        64,
        5,
        0,
    )
    assert asked["sampling"].temperature == 1 and asked["prompts"] == command_line.PROMPTS
    assert asked["drafter"].name == "tales-draft"
    assert capsys.readouterr().out == Profile.bundled().report() + "\n"


@pytest.mark.parametrize(("kind", "name"), [("prompt-lookup", "prompt lookup"), ("layer-skip:2", "first 2 layers")])
def test_other_drafters(asked, kind, name):
    assert main(["profile", "tales", "--drafter", kind, "--temperature", "0"]) == 0
    assert (asked["target"].name, asked["drafter"].name) == ("tales-target", name)
    assert asked["sampling"].temperature == 0


def test_two_folders(asked):
    from specviz.models.zoo import CHECKPOINTS

    folders = [str(CHECKPOINTS / "tales" / name) for name in ("target", "draft")]
    assert main(["profile", *folders]) == 0
    assert [asked["target"].name, asked["drafter"].name] == folders
    assert main(["profile", folders[0], "--drafter", "prompt-lookup"]) == 0
    assert asked["target"].name == folders[0]


@pytest.mark.parametrize(
    ("text", "gammas"),
    [("1-8", [*range(1, 9)]), ("4", [4]), ("1,2,4", [1, 2, 4]), ("1-3,8", [1, 2, 3, 8]), (" 2 - 3 ", [2, 3])],
)
def test_lists_of_gammas(text, gammas):
    assert command_line._gammas(text) == gammas


@pytest.mark.parametrize("text", ["", "x", "0-3", "3-1", "1-2-3", "1,,2", "-1", "1.5", "1-100000000000"])
def test_no_lists_of_gammas(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text!r} is no list of γ: give such as 1-8"):
        command_line._gammas(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["profile"], "the following arguments are required: TARGET"),
        (["prophet", "tales"], "invalid choice: 'prophet'"),
        (["profile", "tales", "--gammas", "0-2"], "'0-2' is no list of γ"),
        (["profile", "tales", "--runs", "many"], "argument --runs: invalid int value: 'many'"),
        (["profile", "nope"], "pair 'nope' is unknown: the bundled ones are"),
        (["profile", "tales", "--temperature", "-1"], "temperature=-1.0: must be a finite number"),
        (["profile", "tales", "--drafter", "oracle"], "--drafter 'oracle': must be prompt-lookup, or layer-skip:N"),
        (["profile", "tales", "--drafter", "layer-skip:x"], "--drafter 'layer-skip:x': must be"),
        (["profile", "tales", "--drafter", "layer-skip:99"], "layers=99"),
        (["profile", "tales", "--drafter", "prompt-lookup:3"], "--drafter 'prompt-lookup:3': must be"),
        (["profile", "a", "b", "--drafter", "prompt-lookup"], "DRAFT 'b' and --drafter 'prompt-lookup': give one"),
        (["profile", "tales", "--gammas", "70"], "γ=70 never fits into max_new_tokens=64"),
        (["profile", "tales", "--device", "abacus"], "device='abacus' cannot be used here"),
        (["profile", "tales", "--html", "{tmp}"], "is a folder: give the name of a file"),
        (["profile", "tales", "--json", "{tmp}/no/x.json"], "there is no folder"),
        (["profile", "tales", "--json", "{tmp}/x", "--html", "{tmp}/x"], "one would overwrite the other"),
        (["profile", "tales", "--prompts", "{tmp}/none.txt"], "cannot be read: No such file"),
        (["profile", "tales", "--prompts", "{tmp}"], "cannot be read: Is a directory"),
        (["profile", "tales", "--prompts", "{tmp}/empty.txt"], "is empty: give at least two, one a line"),
        (["profile", "tales", "--prompts", "{tmp}/one.txt"], "holds one prompt: give at least two"),
        (["profile", "tales", "--prompts", "{tmp}/latin.txt"], "is not UTF-8 text (byte 1): save it as UTF-8"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, says, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "one.txt").write_text("Once upon a time\n")
    (tmp_path / "latin.txt").write_bytes("Müller\nKönig\n".encode("latin-1"))
    try:
        code = main([argument.format(tmp=tmp_path) for argument in arguments])
    except SystemExit as end:  # argparse's own
        code = end.code
    out, err = capsys.readouterr()
    lines = [line for line in err.replace("\r", "\n").split("\n") if "error" in line]
    assert code == 2 and out == "" and len(lines) == 1 and says in lines[0], err
    assert re.match(r"python -m specviz( profile)?: error: ", lines[0]) and "Traceback" not in err


def test_an_interrupt_leaves_nothing_behind(asked, monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(speedup, "profile", interrupted)
    before = tmp_path / "page.html"
    before.write_text("from before")
    assert main(["profile", "tales", "--html", str(before), "--json", str(tmp_path / "new.json")]) == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["from before"]
    assert "interrupted; nothing was written" in capsys.readouterr().err


def test_an_interrupt_while_a_file_is_written_keeps_the_old_one(asked, monkeypatch, tmp_path):
    def half(self, path):
        path.write_text("<html")
        raise KeyboardInterrupt

    from specviz.widgets import SpeedupExplorer

    monkeypatch.setattr(SpeedupExplorer, "to_html", half)
    before = tmp_path / "page.html"
    before.write_text("from before")
    assert main(["profile", "tales", "--html", str(before)]) == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["from before"]
