"""Write benchmarks/data: the held-out prompts and the corpus's word list.

    python tools/make_heldout.py CORPUS      # the folder that tools/train_tales.py was given
"""

import json
import re
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "benchmarks" / "data"
FRONT_MATTER = {"English-Fairy-Tales": 2, "The-Pink-Fairy-Book": 2}  # blocks before the first tale
BLOCKS, AT_LEAST = 25, 1500  # per book; characters


def main():
    corpus, prompts, words = Path(sys.argv[1]), [], set()
    for book, skip in FRONT_MATTER.items():
        blocks = (corpus / "heldout" / f"{book}.txt").read_text().strip().split("\n\n")[skip:]
        long = [block for block in blocks if len(block) >= AT_LEAST][:BLOCKS]
        prompts += [{"book": book, "text": block[:AT_LEAST]} for block in long]
    for file in corpus.glob("*/*.txt"):
        words.update(re.findall(r"[a-z]+(?:'[a-z]+)*", file.read_text().lower()))
    OUT.mkdir(exist_ok=True)
    (OUT / "heldout.json").write_text(json.dumps(prompts, indent=1) + "\n")
    (OUT / "words.txt").write_text("\n".join(sorted(words)) + "\n")


if __name__ == "__main__":
    main()
