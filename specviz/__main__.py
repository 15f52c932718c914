"""The command line: python -m specviz profile TARGET [DRAFT] says whether speculation pays for a pair, here."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

MAX_GAMMA = 1000  # more is a slip of the finger
PROMPTS = [  # beginnings of tales, for want of the user's own
    "Once upon a time there was a little girl who lived at the edge of a great forest.",
    "The old king had three sons, and the youngest was called the Simpleton.",
    "A fox was walking by the river one morning when he saw a crow with a piece of cheese.",
    "In the garden behind the house there grew a tree that bore golden apples.",
    "There was once a poor miller who had nothing left but his mill and his donkey.",
    "When the sun had gone down, the children crept out of their beds and went to the window.",
    "The wolf knocked at the door and said in a soft voice, \"Let me in.\"",
    "Far away beyond the seven hills lived a princess who could not laugh.",
]  # fmt: skip


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line and exit code 2, as for every other wrong argument; -h tells the rest."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(arguments=None) -> int:
    """Run the command line -> exit code: 0, 2 for wrong arguments (with one line that says so), 130 if interrupted."""
    parser = Parser(prog="python -m specviz", description="Speculative decoding, to be seen, proved and measured.")
    commands = parser.add_subparsers(title="commands", parser_class=Parser)
    _add_profile(commands)
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    try:
        return options.run(options)
    except ValueError as error:
        print(f"{options.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{options.prog}: interrupted; nothing was written.", file=sys.stderr)
        return 130


# --- profile ------------------------------------------------------------------------------------


def _add_profile(commands):
    parser = commands.add_parser(
        "profile",
        help="measure a pair: does speculation pay here, and with which γ?",
        description="Measure acceptance, costs and speedups of a pair on this machine; print a table and a verdict.",
    )
    add = parser.add_argument
    add("target", metavar="TARGET", help='a named pair ("tales"), or a Hugging Face id or folder')
    add("draft", metavar="DRAFT", nargs="?", help="the draft model: an id or a folder; a named pair has its own")
    add("--drafter", metavar="KIND", help="in place of DRAFT: prompt-lookup, or layer-skip:N (the first N layers)")
    add("--prompts", metavar="FILE", type=Path, help="UTF-8 text, one prompt a line, at least two")
    add("--gammas", metavar="LIST", type=_gammas, default=_gammas("1-8"), help="such as 1-8 (default) or 1,2,4")
    add("--max-new-tokens", metavar="N", type=int, default=64, help="length of each text (default 64)")
    add("--runs", metavar="N", type=int, default=5, help="how often all is repeated (default 5)")
    add("--temperature", metavar="T", type=float, default=1.0, help="0 is greedy (default 1)")
    add("--seed", metavar="N", type=int, default=0)
    add("--device", default="auto", help="auto (default), cpu, cuda, …")
    add("--html", metavar="OUT", type=Path, help="write an interactive page")
    add("--json", metavar="OUT", type=Path, help="write the profile, for Profile.from_json")
    parser.set_defaults(run=_profile, prog=parser.prog)


def _profile(options) -> int:
    from specviz.sampling import SamplingParams

    prompts = PROMPTS if options.prompts is None else _lines(options.prompts)
    if options.html is not None and options.html == options.json:
        raise ValueError(
            f"--html {options.html} and --json {options.json}: one would overwrite the other; name two files."
        )
    for path in filter(None, (options.html, options.json)):
        _check_writable(path)
    if options.draft is not None and options.drafter is not None:
        raise ValueError(f"DRAFT {options.draft!r} and --drafter {options.drafter!r}: give one of the two.")
    drafter = None if options.drafter is None else _drafter(options.drafter)
    sampling = SamplingParams(temperature=options.temperature)
    target, draft = _pair(options, drafter)

    from specviz.speedup import profile

    measured = profile(
        target, draft, prompts, gammas=options.gammas, max_new_tokens=options.max_new_tokens, sampling=sampling,
        runs=options.runs, seed=options.seed,
    )  # fmt: skip
    if options.json is not None:
        _write(options.json, lambda path: path.write_text(measured.to_json() + "\n", encoding="utf-8"))
    if options.html is not None:
        from specviz.widgets import SpeedupExplorer

        _write(options.html, SpeedupExplorer(measured).to_html)
    print(measured.report())
    return 0


def _pair(options, drafter):
    """(target, drafter) as the arguments name them."""
    from specviz.models.zoo import NAMED, load_model, load_pair

    if drafter is None:
        return load_pair(options.target, options.draft, device=options.device)
    if options.target in NAMED:
        return load_pair(options.target, device=options.device)[0], drafter
    return load_model(options.target, options.device), drafter


def _drafter(kind):
    from specviz.drafters.layer_skip import LayerSkip
    from specviz.drafters.prompt_lookup import PromptLookup

    name, _, layers = kind.partition(":")
    if kind == "prompt-lookup":
        return PromptLookup()
    if name == "layer-skip" and layers.isdecimal():
        return LayerSkip(int(layers))
    raise ValueError(f"--drafter {kind!r}: must be prompt-lookup, or layer-skip:N with N layers, such as layer-skip:4.")


def _gammas(text) -> list[int]:
    """1-8 or 1,2,4, or both: 1-4,8."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        ranges = []
    sound = all(len(ends) <= 2 and 1 <= ends[0] <= ends[-1] <= MAX_GAMMA for ends in ranges)
    if not ranges or not sound:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of γ: give such as 1-8 or 1,2,4, each from 1 to {MAX_GAMMA}"
        )
    return sorted({gamma for ends in ranges for gamma in range(ends[0], ends[-1] + 1)})


def _lines(path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompts {str(path)!r} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"--prompts {str(path)!r} cannot be read: {error.strerror}.") from None
    prompts = [line.strip() for line in text.split("\n") if line.strip()]
    if len(prompts) < 2:
        found = "is empty" if not prompts else "holds one prompt"
        raise ValueError(f"--prompts {str(path)!r} {found}: give at least two, one a line.")
    return prompts


def _check_writable(path):
    """ValueError before the measuring, not after it."""
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder: give the name of a file.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}; make it first.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ValueError(f"{str(path)!r} cannot be written: permission denied.")


def _write(path, write):
    """Let write(temporary path) make the file, then put it in place: what is there is whole."""
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".specviz-") as folder:
        temporary = Path(folder) / path.name
        write(temporary)
        os.replace(temporary, path)
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
