"""``ramforge chat``: a conversation. Answers go to stdout as they come, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramforge_cli.console import Progress, describe, one_line, say
from ramforge_cli.options import answer_options, debug_option, model_options, opening
from ramforge_cli.outputs import OutputError

if TYPE_CHECKING:
    from ramforge_core.conversation import Conversation

_HELP = """\
/system [TEXT]  instructions that stand before all turns; without TEXT: none
/save FILE      write the conversation to a file, with what was computed for it
/load FILE      go on with a saved one
/forget         begin anew
/stats          how fast the last answer was
/ram            where the memory is
/help           this list
/exit           leave, as does Ctrl-D
Ctrl-C stops an answer. Esc, then Enter begins a new line. // at the start of a line is a slash of yours."""


@click.command()
@click.argument("model", default="smollm2")
@click.option("--system", metavar="TEXT", help="Instructions that stand before all turns.")
@answer_options
@model_options
@debug_option
def chat(model: str, system: str | None, **options: Any) -> None:
    """Talk to a model, turn by turn.

    Past turns are not computed again. Lines that begin with / are commands; /help lists them. On a terminal lines can
    be edited and called back; otherwise each line of stdin is a turn.
    """
    import ramforge_core
    from ramforge_core.conversation import Conversation

    lines = _lines(_editor() if sys.stdin and sys.stdin.isatty() and sys.stdout.isatty() else None)
    with Progress("loading") as loading:
        opened = ramforge_core.open(model, progress=loading, **opening(options))
    with opened, Conversation(opened, system) as conversation:
        session = _Chat(conversation, options)
        for line in lines:
            if not session.take(line):
                break


class _Chat:
    """What to do with a line."""

    def __init__(self, conversation: Conversation, options: dict[str, Any]) -> None:
        self._conversation = conversation
        self._options = options
        self._commands: dict[str, Callable[[str], None]] = {
            "system": self._system,
            "save": self._save,
            "load": self._load,
            "forget": self._forget,
            "stats": self._stats,
            "ram": self._ram,
            "help": lambda _: say(_HELP),
        }

    def take(self, line: str) -> bool:
        """Answer a line or obey it. Returns whether the conversation goes on."""
        from ramforge_core.errors import GGUFError, Interrupted, RamforgeError

        if not line.strip():
            return True
        word, _, rest = line[1:].partition(" ")
        if line.startswith("/") and not line.startswith("//"):
            if word in ("exit", "quit", "bye"):
                return False
            if word not in self._commands:
                say(f"there is no command /{one_line(word)}; /help lists them")
                return True
        try:
            if line.startswith("/") and not line.startswith("//"):
                self._commands[word](rest.strip())
            else:
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
        except KeyboardInterrupt:
            say("(stopped)")
        except (GGUFError, Interrupted):
            raise
        except (RamforgeError, OSError) as error:  # of this line; the conversation is as it was
            say(f"ramforge: error: {describe(error)}")
        return True

    def _answer(self, text: str) -> None:
        out = sys.stdout
        with Progress("reading the prompt", lambda n: f"{n:.0f} tokens") as reading:
            pieces = self._conversation.say(text, progress=reading, **self._options)
            first = next(pieces, "")
        try:
            out.write(first)
            out.flush()
            for piece in pieces:
                out.write(piece)
                out.flush()
        finally:
            pieces.close()
            out.write("\n")
            out.flush()
        answer = self._conversation.answer
        if answer is not None and answer.finish_reason == "context":
            say("the answer filled the context; /forget begins anew, --ctx chooses a larger one")

    def _system(self, text: str) -> None:
        self._conversation.system = text or None

    def _save(self, name: str) -> None:
        from ramforge_core.sizes import format_size

        if _named(name):
            try:
                n_bytes = self._conversation.save(Path(name))
            except OSError as error:  # it names the temporary file, which nobody asked for
                raise OutputError(f"cannot write {name}: {error.strerror or error}") from error
            say(f"{name}: {format_size(n_bytes)}")

    def _load(self, name: str) -> None:
        if _named(name):
            self._conversation.load(Path(name))
            say(f"{name}: {len(self._conversation.messages)} messages")

    def _forget(self, _: str) -> None:
        self._conversation.forget()

    def _stats(self, _: str) -> None:
        answer = self._conversation.answer
        if answer is None:
            say("there is no answer yet")
            return
        s = answer.stats
        say(
            f"prompt: {s.prompt_tokens} tokens at {s.prompt_tokens_per_s:.1f} tokens/s, "
            f"{s.reused_tokens} kept from before\n"
            f"answer: {s.generated_tokens} tokens at {s.decode_tokens_per_s:.1f} tokens/s, "
            f"the first after {s.first_token_s:.2f} s\n"
            f"context: {len(answer.prompt_ids) + s.generated_tokens} of {answer.engine.context} tokens"
        )

    def _ram(self, _: str) -> None:
        from ramforge_core import reports

        say(reports.memory_report(self._conversation.model.engine.budget).render())


def _named(name: str) -> bool:
    if not name:
        say("give the name of a file, too")
    return bool(name)


def _lines(editor: Any) -> Iterator[str]:
    """What a person types, or the lines of stdin."""
    if editor is None:
        for line in sys.stdin or ():
            yield line.rstrip("\r\n")
        return
    while True:
        try:
            yield editor.prompt("> ")
        except KeyboardInterrupt:
            say("Ctrl-D or /exit leaves")
        except EOFError:
            return


def _editor() -> Any:
    """A line editor with history; Esc, then Enter begins a new line."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(history=InMemoryHistory(), key_bindings=keys, enable_open_in_editor=True)
