"""Text to ids and back, and the bytes of one id.

A tokenizer here has encode(text) -> ids, decode(ids) -> text, piece(id) -> bytes and vocabulary {entry: id}. Runs of
the ids in byte_fallback, where a tokenizer has it, are decoded together (see specviz.text).
"""

from __future__ import annotations

import json
import re
from functools import cache, cached_property

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
        self._pieces: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        ids = self.hub.encode(text, verbose=False)  # specviz itself refuses a prompt that is too long
        bos, begin = (getattr(self.hub, name, None) for name in ("bos_token", "bos_token_id"))
        if bos and text.startswith(bos) and ids[:2] == [begin, begin] and not text.startswith(bos + bos):
            return ids[1:]  # a text that has its beginning already, such as a chat template's
        return ids

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
        """The bytes that this id adds within a text; they may be part of a character."""
        if token not in self._pieces:
            self._pieces[token] = self._piece(int(token))
        return self._pieces[token]

    def _piece(self, token) -> bytes:
        entry = self.hub.convert_ids_to_tokens(token)
        if entry is None:  # a padded vocabulary has ids without an entry
            return b""
        before = self.decode(self._neighbour)
        text = self.decode([*self._neighbour, token])
        added = text[len(before) :]
        whole = text.startswith(before) and "\ufffd" not in added
        if whole and (added or len(entry) > 1):
            return added.encode()
        # Bytes that are no character by themselves: kinds of tokenizers name them differently.
        if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", entry):
            return bytes([int(byte[1], 16)])
        if self._byte_level:
            return b"".join(_byte_of().get(character, character.encode()) for character in entry)
        if len(entry) == 1 and ord(entry) < 256 and not added:
            return bytes([ord(entry)])
        return entry.encode()

    @cached_property
    def _neighbour(self) -> list[int]:
        """Ids to put before an id that is decoded alone: at the beginning of a text it may lose its space."""
        return list(self.hub.encode("a", add_special_tokens=False))

    @cached_property
    def byte_fallback(self) -> frozenset[int]:
        """The ids of single bytes in a vocabulary of characters, as SentencePiece has them."""
        entries = [f"<0x{byte:02X}>" for byte in range(256)]
        ids = self.hub.convert_tokens_to_ids(entries)
        known = [i is not None and self.hub.convert_ids_to_tokens(i) == entry for i, entry in zip(ids, entries)]
        return frozenset(i for i, there in zip(ids, known, strict=True) if there)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        return self.hub.get_vocab()


@cache
def _byte_of() -> dict[str, bytes]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: bytes([byte]) for byte, character in bytes_to_unicode().items()}


def same_tokenizer(a, b) -> bool:
    """Whether two tokenizers give the same ids the same meaning; unknown (None) counts as the same."""
    return a is None or b is None or a is b or a.vocabulary == b.vocabulary
