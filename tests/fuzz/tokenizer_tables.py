"""Target: the tables of a vocabulary, bent and broken, and then any text through what is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz.target import FRACTIONS, NUMBERS, Choices
from ramforge_core.gguf import Metadata
from ramforge_core.plugins import Registry
from ramforge_core.tokenizer import Tokenizer

REGISTRY = Registry.discover()
PREFIX = "tokenizer.ggml."
MODELS = ("gpt2", "llama")
PRES = ("default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o", "deepseek-llm", "nonsense")
KEYS = tuple(
    PREFIX + key
    for key in (
        "tokens",
        "token_type",
        "scores",
        "merges",
        "pre",
        "model",
        "bos_token_id",
        "eos_token_id",
        "eot_token_id",
        "eom_token_id",
        "unknown_token_id",
        "padding_token_id",
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "remove_extra_whitespaces",
        "precompiled_charsmap",
        "token_type_count",
    )
)
OTHERS = (True, False, 1.5, "", "x", [], ["a"], [1], [[1]], [True], b"\xff", -1)
STAND_INS = [b for b in range(256) if not (0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE)]
PAIRS = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("Ġ", "Ġ"), ("ä", "¸"))
WORDS = ("▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁▁", "中", "<s")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<tool>")


def byte_pairs() -> dict[str, object]:
    alphabet = [chr(0x100 + STAND_INS.index(b)) if b in STAND_INS else chr(b) for b in range(256)]
    tokens = [*SPECIAL, *alphabet, *(a + b for a, b in PAIRS)]
    return {
        PREFIX + "model": "gpt2",
        PREFIX + "pre": "gpt-2",
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": [3, 3, 4] + [1] * (len(tokens) - 3),
        PREFIX + "merges": [f"{a} {b}" for a, b in PAIRS],
        PREFIX + "bos_token_id": 0,
        PREFIX + "eos_token_id": 1,
    }


def sentence_pieces() -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS, *SPECIAL]
    return {
        PREFIX + "model": "llama",
        PREFIX + "tokens": tokens,
        PREFIX + "scores": [0.0] * 259 + [-float(i) for i in range(len(WORDS))] + [0.0] * 3,
        PREFIX + "token_type": [2, 3, 3] + [6] * 256 + [1] * len(WORDS) + [3, 3, 4],
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        PREFIX + "unknown_token_id": 0,
    }


def seeds() -> Iterator[bytes]:
    text = " Hello hello  中<|im_start|>\n123 it's".encode()
    for model in range(len(MODELS)):
        yield bytes([model, 0]) + text
        for change in range(1, 11):
            yield bytes([model, change, 0, 3, 1, 2, 3, 4, 0]) + text


def check(data: bytes) -> None:
    choices = Choices(data)
    model = choices.pick(MODELS)
    values = byte_pairs() if model == "gpt2" else sentence_pieces()
    while change := choices.byte() % 12:
        _change(values, change, choices)
    try:
        metadata = Metadata.from_dict(values)
    except (TypeError, OverflowError, UnicodeError):
        return  # no file can hold this
    tokenizer = REGISTRY.tokenizer(model).from_metadata(metadata)
    _use(tokenizer, choices)


def _use(tokenizer: Tokenizer, choices: Choices) -> None:
    options, barriers = choices.byte(), sorted({choices.byte(), choices.byte()})
    text = choices.rest().decode("utf-8", "surrogateescape" if options & 4 else "replace")
    ids = tokenizer.encode(
        text,
        add_special=bool(options & 1),
        parse_special=bool(options & 2),
        barriers=[b for b in barriers if 0 < b < len(text)],
    )
    for token in (*ids, *range(0, tokenizer.n_vocab, 31)):
        if not 0 <= token < tokenizer.n_vocab:
            raise AssertionError(f"token {token} of {tokenizer.n_vocab}")
        tokenizer.piece(token)
        tokenizer.is_control(token)
    tokenizer.detokenize(ids)
    stream = tokenizer.stream(special=True)
    said = "".join(map(stream.push, ids)) + stream.finish()
    if said != tokenizer.decode(ids).decode("utf-8", "replace"):
        raise AssertionError("the stream says something else than decode")
    for control in tokenizer.control_texts:
        tokenizer.token_id(control)
    for token in (tokenizer.bos_id, tokenizer.eos_id, *tokenizer.end_of_generation):
        if token is not None:
            tokenizer.piece(token)


def _change(values: dict[str, object], change: int, choices: Choices) -> None:
    tables = {1: "tokens", 2: "token_type", 3: "scores", 4: "merges"}
    if change in tables:
        table = values.get(PREFIX + tables[change])
        if isinstance(table, list) and table:
            table[choices.below(len(table))] = {
                1: lambda: choices.take(),
                2: lambda: choices.byte() - 128,
                3: lambda: choices.pick(FRACTIONS),
                4: lambda: choices.take(),
            }[change]()
    elif change in (5, 6):  # a table longer or shorter than the others
        table = values.get(PREFIX + tables[1 + choices.below(4)])
        if isinstance(table, list) and table:
            n = choices.below(len(table) + 1)
            table[n:] = table[n : n + choices.byte()] * (1 + choices.below(20))
    elif change == 7:
        values[PREFIX + "pre"] = choices.pick(PRES)
    elif change == 8:
        values[choices.pick(KEYS)] = choices.pick((*NUMBERS[:-2], *range(300)))
    elif change == 9:
        values.pop(choices.pick(KEYS), None)
    elif change == 10:
        values[choices.pick(KEYS)] = choices.pick(OTHERS)
    else:
        values[choices.pick(KEYS)] = choices.take()
