"""Arguments that commands share; results on stdout, as text or as JSON; files written whole or not at all."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

# --- arguments ----------------------------------------------------------------------------------


def add_pair(parser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help='a named pair ("tales"), or a Hugging Face id or folder')
    add("draft", metavar="DRAFT", nargs="?", help="the draft model: an id or a folder; a named pair has its own")
    add("--drafter", metavar="KIND", help="in place of DRAFT: prompt-lookup, or layer-skip:N (the first N layers)")
    add("--device", default="auto", help="auto (default), cpu, cuda, …")


def load(options):
    """(target, drafter), as TARGET, DRAFT and --drafter name them."""
    from specviz import load_pair
    from specviz.zoo import NAMED

    if options.drafter is None:
        if options.draft is None and options.target not in NAMED:
            others = "--drafter or --plain" if hasattr(options, "plain") else "or --drafter"
            raise ValueError(f"TARGET {options.target!r} is no named pair ({', '.join(NAMED)}): give DRAFT, {others}.")
        return load_pair(options.target, options.draft, device=options.device)
    if options.draft is not None:
        raise ValueError(f"DRAFT {options.draft!r} and --drafter {options.drafter!r}: give one of the two.")
    drafter = _drafter(options.drafter)
    return load_target(options), drafter


def load_target(options):
    from specviz.zoo.pairs import NAMED, load_model, load_pair

    if options.target in NAMED:
        return load_pair(options.target, device=options.device)[0]
    return load_model(options.target, options.device)


def _drafter(kind):
    from specviz import LayerSkip, PromptLookup

    name, _, layers = kind.partition(":")
    if kind == "prompt-lookup":
        return PromptLookup()
    if name == "layer-skip" and layers.isdecimal():
        return LayerSkip(int(layers))
    raise ValueError(f"--drafter {kind!r}: must be prompt-lookup, or layer-skip:N with N layers, such as layer-skip:4.")


def add_decoding(parser, *, max_new_tokens, seed=0, gamma=4) -> None:
    """How to decode. gamma=None: the command has an argument of its own for it."""
    add = parser.add_argument
    if gamma is not None:
        add("--gamma", metavar="N", type=drafts, default=gamma, help=f"drafts a round (default {gamma})")
    length = f"length of a text at most (default {max_new_tokens})"
    add("--max-new-tokens", metavar="N", type=int, default=max_new_tokens, help=length)
    add("--temperature", metavar="T", type=float, default=1.0, help="0 is greedy (default 1)")
    add("--top-k", metavar="K", type=int, help="keep the K likeliest tokens (default: all)")
    add("--top-p", metavar="P", type=float, help="keep the likeliest tokens that make up P together (default: all)")
    default = "a fresh one" if seed is None else seed
    add("--seed", metavar="N", type=int, default=seed, help=f"of all that is random (default: {default})")


def drafts(text) -> int:
    """The value of --gamma."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer >= 1 (generate --plain decodes without drafts)")
    return int(text)


def sampling(options):
    from specviz import SamplingParams

    return SamplingParams(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)


# --- results ------------------------------------------------------------------------------------


def add_json(parser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - prints it in place of the text")


def give(options, text, result: dict) -> None:
    """Print text and write result where --json asks for it; with --json - print result alone."""
    document = json.dumps(result, allow_nan=False, indent=1) + "\n"  # in ASCII: no code page can spoil it
    if options.json not in (None, "-"):
        write(options.json, lambda path: path.write_text(document))
    put(document if options.json == "-" else f"{text}\n")


def put(text) -> bool:
    """Write text to stdout at once. False once its reader has gone (head, say): this and all further text is lost."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def check_files(options) -> None:
    """ValueError, before the work and not after it, for files that cannot be written."""
    files = {f"--{name}": getattr(options, name, None) for name in ("json", "html")}
    files = {name: file for name, file in files.items() if file not in (None, "-")}
    for name, file in files.items():
        if os.path.isdir(file) or not os.access(Path(file).absolute().parent, os.W_OK):
            raise ValueError(f"{name} {file!r} cannot be written: name a file in a folder that exists and is yours.")
    if len({Path(file).absolute() for file in files.values()}) < len(files):
        raise ValueError(f"{' and '.join(files)} name one file, {file!r}: name two.")


def write(path, make) -> None:
    """Let make(temporary path) write the file, then put it in place: an interruption leaves the old one."""
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".specviz-") as folder:
        temporary = Path(folder) / path.name
        make(temporary)
        os.replace(temporary, path)
    print(f"wrote {path}", file=sys.stderr)
