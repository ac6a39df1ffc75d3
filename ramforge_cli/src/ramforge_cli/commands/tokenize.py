"""``ramforge tokenize``: text to ids and pieces, or ids to text. Works on files that hold a vocabulary only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click

from ramforge_cli.inputs import read_text
from ramforge_cli.options import debug_option, json_option

if TYPE_CHECKING:
    from ramforge_core.tokenizer import Tokenizer


@click.command()
@click.argument("model")
@click.argument("text", required=False)
@click.option(
    "--add-special", is_flag=True, help="Add the tokens that begin and end a text, as the file asks."
)
@click.option(
    "--parse-special",
    is_flag=True,
    help="Take the text of a control token, such as <|im_end|>, as the token.",
)
@click.option("--decode", "ids", metavar="IDS", help="Turn ids, separated by blanks or commas, into text.")
@json_option
@debug_option
def tokenize(
    model: str, text: str | None, add_special: bool, parse_special: bool, ids: str | None, as_json: bool
) -> None:
    """Turn text into token ids, or ids into text.

    TEXT is read from stdin, to the last byte, if it is - or not given. Prints one token per line: its id, and its
    bytes as a JSON string (bytes that are no text as \\xNN).
    """
    if ids is not None and (text is not None or add_special or parse_special):
        raise click.UsageError("--decode takes ids only: no TEXT, no --add-special, no --parse-special")

    import ramforge_core

    if ids is not None:
        numbers = _parse_ids(ids)
        _decode(ramforge_core.open_tokenizer(model), numbers, as_json)
        return
    given = read_text(text, "give TEXT, or pipe it in")
    tokenizer = ramforge_core.open_tokenizer(model)
    tokens = tokenizer.encode(given, add_special=add_special, parse_special=parse_special)
    pieces = [tokenizer.piece(token) for token in tokens]
    if as_json:
        shown = [{"id": t, "piece": _text(p), "bytes": p.hex()} for t, p in zip(tokens, pieces, strict=True)]
        click.echo(json.dumps({"ids": tokens, "tokens": shown}, ensure_ascii=False, indent=2))
        return
    width = len(str(max(tokens, default=0)))
    for token, piece in zip(tokens, pieces, strict=True):
        click.echo(f"{token:>{width}}  {json.dumps(_text(piece), ensure_ascii=False)}")


def _text(piece: bytes) -> str:
    """The bytes of a token as text; what is not UTF-8 (half a character) as ``\\xNN``."""
    return piece.decode("utf-8", "backslashreplace")


def _parse_ids(ids: str) -> list[int]:
    words = re.split(r"[\s,\[\]]+", ids.strip(" \t\r\n,[]"))
    try:
        return [int(word) for word in words if word]
    except ValueError:
        raise click.BadParameter(
            f"{ids!r} is no list of numbers such as '1 2 3'", param_hint="--decode"
        ) from None


def _decode(tokenizer: Tokenizer, ids: list[int], as_json: bool) -> None:
    bad = next((i for i in ids if not 0 <= i < tokenizer.n_vocab), None)
    if bad is not None:
        raise click.BadParameter(
            f"id {bad} is outside the vocabulary of {tokenizer.n_vocab} tokens", param_hint="--decode"
        )
    data = tokenizer.detokenize(ids)
    if as_json:
        click.echo(json.dumps({"text": _text(data), "bytes": data.hex()}, ensure_ascii=False))
    else:
        click.echo(data)
