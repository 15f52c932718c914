"""python -m specviz: each command's help, a tiny run, wrong calls in one line; exit statuses, files, JSON, streams."""

import argparse
import io
import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import specviz
from specviz import equivalence, load_pair, speedup, stream
from specviz.__main__ import COMMANDS, main
from specviz.commands import shared
from specviz.commands.profile import PROMPTS, gammas
from specviz.equivalence import MUTANTS
from specviz.speedup import Profile
from specviz.zoo.pairs import CHECKPOINTS

TINY = ["--gammas", "1,2", "--max-new-tokens", "6", "--runs", "1"]
GENERATE = ["generate", "tales", "--prompt", "Once upon a time", "--seed", "3", "--max-new-tokens", "12"]
COMMAND = [sys.executable, "-m", "specviz"]
FOLDERS = [str(CHECKPOINTS / "tales" / name) for name in ("target", "draft")]


def shell(*arguments, **settings):
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, encoding="utf-8", **settings)


def status(arguments):
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse's own
        return end.code


def rejects(capsys, arguments, says):
    """Exit status 2, nothing on stdout, and one line of error on stderr."""
    code, (out, err) = status(arguments), capsys.readouterr()
    lines = [line for line in err.replace("\r", "\n").split("\n") if "error" in line]
    assert code == 2 and out == "" and len(lines) == 1 and says in lines[0], err
    assert re.match(r"specviz( \w+)?: error: ", lines[0]) and "Traceback" not in err


# --- the command itself -------------------------------------------------------------------------


def test_without_a_command_it_lists_them(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: specviz") and all(f"    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name, capsys):
    assert status([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: specviz {name}") and "--json FILE" in out and "--seed N" in out
    assert " ".join(COMMANDS[name].__doc__.split())[:60] in " ".join(out.split())


def test_version(capsys):
    assert status(["--version"]) == 0 and capsys.readouterr().out == f"specviz {specviz.__version__}\n"


def test_the_console_script_is_this_command():
    text = (Path(specviz.__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["scripts"] == {"specviz": "specviz.__main__:main"}


def test_the_shell_gets_the_exit_status():
    done = shell("prove", "--vocabulary", "1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "specviz prove: error: vocabulary=1: must be an integer >= 2.\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prophet", "tales"], "invalid choice: 'prophet'"),
        (["profile"], "the following arguments are required: TARGET"),
        (["profile", "tales", "--runs", "many"], "argument --runs: invalid int value: 'many'"),
        (["profile", "nope"], "TARGET 'nope' is no named pair (tales, smollm2, "),
        (["profile", "nope"], "t5): give DRAFT, or --drafter."),
        (["generate", FOLDERS[0], "--prompt", "x"], "t5): give DRAFT, --drafter or --plain."),
        (["profile", "tales", "--runs", "0"], "runs=0: must be an integer >= 1"),
        (["profile", "tales", "--gammas", "0-2"], "'0-2' is no list of γ"),
        (["profile", "tales", "--gammas", "70"], "γ=70 never fits into max_new_tokens=64"),
        (["profile", "tales", "--temperature", "-1"], "temperature=-1.0: must be a finite number"),
        (["profile", "tales", "--device", "abacus"], "device='abacus' cannot be used here"),
        (["profile", "tales", "--drafter", "oracle"], "--drafter 'oracle': must be prompt-lookup, or layer-skip:N"),
        (["profile", "tales", "--drafter", "layer-skip:x"], "--drafter 'layer-skip:x': must be"),
        (["profile", "tales", "--drafter", "layer-skip:99"], "layers=99"),
        (["profile", "tales", "--drafter", "prompt-lookup:3"], "--drafter 'prompt-lookup:3': must be"),
        (["profile", "a", "b", "--drafter", "prompt-lookup"], "DRAFT 'b' and --drafter 'prompt-lookup': give one"),
        (["profile", "tales", "--html", "{tmp}"], "--html '{tmp}' cannot be written"),
        (["prove", "--json", "{tmp}/no/x.json"], "cannot be written: name a file in a folder that exists"),
        (["profile", "tales", "--json", "{tmp}/x", "--html", "{tmp}/x"], "--json and --html name one file"),
        (["profile", "tales", "--prompts", "{tmp}/none.txt"], "--prompts {tmp}/none.txt cannot be read: No such file"),
        (["profile", "tales", "--prompts", "{tmp}"], "--prompts {tmp} cannot be read: Is a directory"),
        (["profile", "tales", "--prompts", "{tmp}/empty.txt"], "has 0 of them: give at least two, one a line"),
        (["profile", "tales", "--prompts", "{tmp}/one.txt"], "has 1 of them: give at least two"),
        (["profile", "tales", "--prompts", "{tmp}/latin.txt"], "is not UTF-8 text (byte 1): save it as UTF-8"),
        (["generate", "tales"], "the following arguments are required: --prompt"),
        (["generate", "tales", "--prompt", ""], "prompt='' is empty"),
        (["generate", "tales", "--prompt", "x", "--gamma", "0"], "argument --gamma: '0': must be an integer >= 1 ("),
        (["generate", "tales", "--prompt", "x", "--stop", ""], "stop=['']: must be a string"),
        (["generate", "tales", "b", "--plain", "--prompt", "x"], "--plain decodes without a draft: leave DRAFT"),
        (["generate", "{tmp}/nothing", "--plain", "--prompt", "x"], "does not exist"),
        (["prove", "--order", "900000000"], "make a table of more than 1000000 entries"),
        (["prove", "--eos", "3"], "eos: ids [3] are outside the vocabulary"),
        (["prove", "--seed", "-1"], "seed=-1: must be an integer >= 0"),
        (["prove", "--vocabulary", "9", "--max-new-tokens", "9"], "Fewer come from a smaller max_new_tokens"),
        (["prove", "--max-branches", "10"], "the limit is max_branches=10"),
        (["prove", "--max-branches", "10"], "and from top_k; --merge visits about"),
        (["prove", "--merged"], "specviz prove: error: unrecognized arguments: --merged"),
        (["--merge"], "specviz: error: unrecognized arguments: --merge"),
        (["audit", "tales", "--samples", "0"], "samples=0: must be an integer >= 1"),
        (["audit", "tales", "--decoder", "magic"], "argument --decoder: invalid choice: 'magic'"),
        (["audit", "tales", "--decoder", "transformers", "--drafter", "layer-skip:2"], "transformers has no such"),
        (["audit", "tales", "--resume", "{tmp}/one.txt", "--samples", "1"], "is no file of an audit"),
        (["mutants", "nobody"], "NAME 'nobody' is unknown: must be one of right, "),
        (["mutants", "right", "--samples", "3"], "max_samples=3: must be an integer >= 4"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(arguments, says, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "one.txt").write_text("Once upon a time\n")
    (tmp_path / "latin.txt").write_bytes("Müller\nKönig\n".encode("latin-1"))
    rejects(capsys, [argument.format(tmp=tmp_path) for argument in arguments], says.format(tmp=tmp_path))


def test_an_error_of_the_work_is_one_line_too(monkeypatch, capsys):
    def broken(*arguments, **settings):
        raise FloatingPointError("target 'x' returned NaN\nin round 3")

    monkeypatch.setattr(specviz, "stream", broken)
    rejects(capsys, GENERATE, "error: target 'x' returned NaN in round 3")


def test_a_code_page_without_greek_letters(monkeypatch):
    page = [io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", page[0])
    monkeypatch.setattr(sys, "stderr", page[1])
    assert status(["profile", "--help"]) == 0 and status(["profile", "tales", "--gammas", "x"]) == 2
    for stream_ in page:
        stream_.flush()
        assert b"?" in stream_.buffer.getvalue()


# --- generate -----------------------------------------------------------------------------------


def expected(**settings):
    pieces = stream(*load_pair("tales"), "Once upon a time", seed=3, max_new_tokens=12, **settings)
    return "".join(pieces), pieces.trace


def test_generate_prints_the_text_alone_and_its_numbers_on_stderr(capsys):
    assert main(GENERATE) == 0
    (out, err), (text, trace) = capsys.readouterr(), expected()
    assert out == text + "\n"
    numbers = rf"12 tokens \(length\), {trace.tokens_per_round:.2f} tokens a round, α {trace.alpha:.2f}, [\d.]+ tokens"
    assert re.fullmatch(numbers + " a second, seed 3\n", err)


def test_generate_gives_one_object_as_json(capsys, tmp_path):
    assert main([*GENERATE, "--top-k", "1", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sampling"] == {"temperature": 1.0, "top_k": 1, "top_p": None} and result["seed"] == 3
    assert main([*GENERATE, "--top-k", "1", "--json", str(tmp_path / "text.json")]) == 0
    assert capsys.readouterr().out == result["text"] + "\n"
    again = json.loads((tmp_path / "text.json").read_text())
    assert again | {"seconds": 0} == result | {"seconds": 0}


@pytest.mark.slow
def test_generate_without_a_draft_and_with_other_drafters(capsys):
    assert main([*GENERATE, "--plain"]) == 0
    out, err = capsys.readouterr()
    plain = stream(load_pair("tales")[0], None, "Once upon a time", seed=3, max_new_tokens=12)
    assert out == "".join(plain) + "\n" and "a round" not in err and "α" not in err
    assert main(["generate", FOLDERS[0], "--plain", *GENERATE[2:]]) == 0  # a target alone needs no draft
    assert capsys.readouterr().out == out
    for drafter in ("prompt-lookup", "layer-skip:2"):
        assert main([*GENERATE, "--drafter", drafter, "--temperature", "0"]) == 0
        greedy = capsys.readouterr().out
        assert main([*GENERATE, "--plain", "--temperature", "0"]) == 0
        assert capsys.readouterr().out == greedy


def test_generate_ends_at_a_stop_string(capsys):
    text, _ = expected()
    word = text.split()[2]
    assert main([*GENERATE, "--stop", "no such words", "--stop", word]) == 0
    out, err = capsys.readouterr()
    assert out == text[: text.index(word)] + "\n" and "tokens (stop)" in err


def test_an_interrupted_text_is_kept(monkeypatch, capsys, tmp_path):
    class Interrupted:
        def __init__(self, *arguments, **settings):
            self.pieces = stream(*arguments, **settings)

        def __iter__(self):
            yield next(iter(self.pieces))
            raise KeyboardInterrupt

        @property
        def trace(self):
            return self.pieces.trace

    monkeypatch.setattr(specviz, "stream", Interrupted)
    assert main([*GENERATE, "--json", str(tmp_path / "text.json")]) == 130
    out, err = capsys.readouterr()
    result = json.loads((tmp_path / "text.json").read_text())
    assert 0 < result["tokens"] < 12 and result["finish_reason"] == "interrupted" and "(interrupted)" in err
    assert out == result["text"] + "\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell of Unix")
def test_a_reader_that_has_enough_ends_it_quietly():
    run = [*COMMAND, *GENERATE[:-1], "400"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell of Unix")
def test_ctrl_c_in_a_shell():
    run = [*COMMAND, *GENERATE[:-1], "400"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(5)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        text = first + process.stdout.read()
        err = process.stderr.read().decode()
        assert process.wait(60) == 130 and "Traceback" not in err and "tokens (interrupted)" in err
        assert text.endswith(b"\n") and len(text) > 6


# --- profile ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_profile_in_the_shell(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The old king\n\n  Es war einmal ein Müller  \nOnce upon a time\n", encoding="utf-8")
    files = [tmp_path / "profile.json", tmp_path / "page.html"]
    done = shell("profile", "tales", "--prompts", prompts, *TINY, "--json", files[0], "--html", files[1])
    assert done.returncode == 0, done.stderr
    profile = Profile.from_json(files[0].read_text(encoding="utf-8"))
    assert (profile.target, profile.prompts, list(profile.speedups)) == ("tales-target", 3, [1, 2])
    assert done.stdout == profile.report() + "\n" and "What to do:" in done.stdout
    assert "<title>Speedup explorer</title>" in files[1].read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == sorted([prompts, *files])  # nothing half-written is left


@pytest.fixture
def asked(monkeypatch):
    """The arguments of profile(), which answers with the bundled profile."""
    seen = {}

    def answer(target, drafter, prompts, **settings):
        seen.update(settings, target=target, drafter=drafter, prompts=prompts)
        return Profile.bundled()

    monkeypatch.setattr(speedup, "profile", answer)
    return seen


def test_defaults(asked, capsys):
    assert main(["profile", "tales"]) == 0
    assert asked["gammas"] == [*range(1, 9)] and [asked[n] for n in ("max_new_tokens", "runs", "seed")] == [64, 5, 0]
    assert asked["sampling"].temperature == 1 and asked["prompts"] == PROMPTS.read_text().splitlines()
    assert asked["drafter"].name == "tales-draft"
    assert capsys.readouterr().out == Profile.bundled().report() + "\n"


def test_the_profile_as_json_in_place_of_the_report(asked, capsys):
    assert main(["profile", "tales", "--json", "-"]) == 0
    assert Profile.from_json(capsys.readouterr().out) == Profile.bundled()


@pytest.mark.parametrize(("kind", "name"), [("prompt-lookup", "prompt lookup"), ("layer-skip:2", "first 2 layers")])
def test_other_drafters(asked, kind, name):
    assert main(["profile", "tales", "--drafter", kind, "--temperature", "0"]) == 0
    assert (asked["target"].name, asked["drafter"].name) == ("tales-target", name)
    assert asked["sampling"].temperature == 0


def test_two_folders(asked):
    assert main(["profile", *FOLDERS]) == 0
    assert [asked["target"].name, asked["drafter"].name] == FOLDERS
    assert main(["profile", FOLDERS[0], "--drafter", "prompt-lookup"]) == 0
    assert asked["target"].name == FOLDERS[0]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1-8", [*range(1, 9)]), ("4", [4]), ("1,2,4", [1, 2, 4]), ("1-3,8", [1, 2, 3, 8]), (" 2 - 3 ", [2, 3])],
)
def test_lists_of_gammas(text, numbers):
    assert gammas(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "0-3", "3-1", "1-2-3", "1,,2", "-1", "1.5", "1-100000000000"])
def test_no_lists_of_gammas(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text!r} is no list of γ: give such as 1-8"):
        gammas(text)


def test_an_interrupted_profile_leaves_the_files_as_they_were(asked, monkeypatch, tmp_path, capsys):
    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(speedup, "profile", interrupted)
    before = tmp_path / "page.html"
    before.write_text("from before")
    assert main(["profile", "tales", "--html", str(before), "--json", str(tmp_path / "new.json")]) == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["from before"]
    assert capsys.readouterr().err == "\nspecviz profile: interrupted.\n"


def test_an_interrupt_while_a_file_is_written_keeps_the_old_one(asked, monkeypatch, tmp_path, capsys):
    def half(self, path):
        path.write_text("<html")
        raise KeyboardInterrupt

    from specviz.widgets import SpeedupExplorer

    monkeypatch.setattr(SpeedupExplorer, "to_html", half)
    before = tmp_path / "page.html"
    before.write_text("from before")
    assert main(["profile", "tales", "--html", str(before)]) == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["from before"]
    assert capsys.readouterr().out == Profile.bundled().report() + "\n"  # the measured numbers are not lost


# --- prove, audit, mutants ----------------------------------------------------------------------


def test_prove(capsys):
    assert main(["prove"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("EXACT: 81 sequences") and "total variation" in out
    arguments = ["--vocabulary", "2", "--order", "2", "--eos", "1", "--top-k", "2", "--merge", "--max-new-tokens", "5"]
    assert main(["prove", *arguments, "--json", "-"]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert proof["exact"] and proof["largest_difference"] < 1e-12 and (proof["order"], proof["gamma"]) == (2, 2)


def test_prove_finds_a_wrong_decoder(monkeypatch, capsys):
    wrong = next(mutant for mutant in MUTANTS if mutant.name == "resample from p").decode_round
    prove = equivalence.prove
    monkeypatch.setattr(equivalence, "prove", lambda *pair, **settings: prove(*pair, decode_round=wrong, **settings))
    assert main(["prove"]) == 1
    assert capsys.readouterr().out.startswith("NOT EXACT: 81 sequences")


def test_audit_of_this_decoder(capsys, tmp_path):
    kept, report = tmp_path / "texts.jsonl", tmp_path / "audit.json"
    arguments = ["audit", "tales", "--max-new-tokens", "2", "--resume", kept, "--json", report]
    assert status([*arguments, "--samples", "100"]) == 0
    assert "specviz: drafts of tales-draft, gamma=4 against tales-target: NOT CONVICTED" in capsys.readouterr().out
    assert status([*arguments, "--samples", "150"]) == 0  # goes on from the first 100
    result = json.loads(report.read_text())
    assert result["texts"] == 150 and not result["convicted"] and kept.read_text().count("\n") == 3


@pytest.mark.parametrize(("drafter", "name"), [([], "assisted by"), (["--drafter", "prompt-lookup"], "prompt lookup")])
def test_audit_of_transformers(drafter, name, capsys):
    arguments = ["audit", "tales", *drafter, "--decoder", "transformers", "--samples", "3", "--max-new-tokens", "2"]
    assert status(arguments) == 0
    out, err = capsys.readouterr()
    assert re.match(rf"AUDIT of transformers [\d.]+ generate\(\): {name}.*: NOT CONVICTED", out) and "warn" not in err


def test_audit_convicts(monkeypatch, capsys):
    from specviz.commands import audit

    monkeypatch.setattr(audit, "decoder", lambda *arguments: lambda prompt, n, seed: [0] * n)
    assert status(["audit", "tales", "--samples", "20", "--max-new-tokens", "2"]) == 1
    assert "CONVICTED" in capsys.readouterr().out


def test_an_interrupted_audit_judges_its_texts(monkeypatch, capsys):
    from specviz.commands import audit

    def decoder(*arguments):
        def generate(prompt, n, seed, calls=[]):  # noqa: B006
            calls.append(seed)
            if len(calls) > 5:
                raise KeyboardInterrupt
            return [12] * n

        return generate

    monkeypatch.setattr(audit, "decoder", decoder)
    assert status(["audit", "tales", "--max-new-tokens", "1"]) == 130
    assert "INTERRUPTED: these are the texts drawn by then" in capsys.readouterr().out


def test_mutants(capsys):
    chosen = ["mutants", "no bonus", "resample from p", "--samples", "4000"]
    assert status(chosen) == 0
    out = capsys.readouterr().out
    assert "every verdict as expected" in out and re.search(r"resample from p .* CONVICTED", out)
    assert status([*chosen, "--json", "-"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert {trial["name"]: trial["convicted"] for trial in trials} == {"no bonus": False, "resample from p": True}


def test_mutants_with_too_few_samples_to_convict(capsys):
    assert status(["mutants", "coarse coins", "--samples", "4"]) == 1
    assert "not as expected: coarse coins" in capsys.readouterr().out


def test_json_on_stdout_survives_every_code_page(capsys):
    shared.give(argparse.Namespace(json="-"), "", {"text": "γ"})
    assert capsys.readouterr().out.isascii()
