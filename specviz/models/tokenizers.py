"""Text to ids and back, and the bytes of one id."""

from __future__ import annotations

import json
import re
from functools import cached_property

from specviz.arguments import encodable


class SymbolTokenizer:
    """One id for each character of symbols."""

    def __init__(self, symbols: str):
        self.symbols = encodable(symbols, "symbols")

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text) - set(self.symbols))
        if unknown:
            raise ValueError(f"prompt {text!r} contains {unknown}: this model knows only {self.symbols!r}.")
        return [self.symbols.index(character) for character in text]

    def decode(self, ids) -> str:
        return "".join(self.symbols[i] for i in ids if i < len(self.symbols))  # a padded vocabulary has more ids

    def piece(self, token: int) -> bytes:
        return self.symbols[token : token + 1].encode()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}


class HubTokenizer:
    """A transformers tokenizer, with the bytes behind each id."""

    def __init__(self, hub):
        self.hub = hub
        backend = getattr(hub, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str())["decoder"] if backend is not None else None
        self._byte_level = decoder is not None and "ByteLevel" in json.dumps(decoder)
        self._special = set(hub.all_special_ids) | set(hub.added_tokens_decoder)

    def encode(self, text: str) -> list[int]:
        return self.hub.encode(text, verbose=False)  # the decoder itself says when a prompt is too long

    def chat(self, messages: list[dict]) -> list[int]:
        """Ids of a conversation [{"role": …, "content": …}, …], up to where the model's answer begins."""
        if not getattr(self.hub, "chat_template", None):
            raise ValueError(f"prompt={messages!r}: this tokenizer has no chat template; give text or token ids.")
        try:
            ids = self.hub.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        except Exception as error:  # templates check their conversations themselves, and need jinja2
            raise ValueError(f"prompt={messages!r}: the tokenizer's chat template refuses it: {error}") from error
        return list(ids)

    def decode(self, ids) -> str:
        return self.hub.decode(list(ids), clean_up_tokenization_spaces=False)

    def piece(self, token: int) -> bytes:
        """The bytes that this id adds to a text; part of a character is fine."""
        entry = self.hub.convert_ids_to_tokens(int(token))
        if entry is None:  # a padded vocabulary has ids without an entry
            return b""
        if token in self._special:
            return entry.encode()
        if self._byte_level:
            return bytes(_BYTE_OF[character] for character in entry)
        if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", entry):  # SentencePiece's byte fallback
            return bytes([int(byte[1], 16)])
        return entry.replace("\u2581", " ").encode()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        return self.hub.get_vocab()


def _byte_of():
    """GPT-2's printable stand-ins for the 256 bytes, as {character: byte}."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_of()


def same_tokenizer(a, b) -> bool:
    """Whether two tokenizers give the same ids the same meaning; unknown (None) counts as the same."""
    return a is None or b is None or a is b or a.vocabulary == b.vocabulary
