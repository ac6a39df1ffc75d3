"""``ramforge serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

_log = logging.getLogger("ramforge")

_BODY_BYTES, _BODY_BYTES_PER_TOKEN = 64 << 10, 64
"""What a request may bring: more than a prompt that fits, so that longer ones are refused by their tokens."""

_RESERVE_BYTES = 16 << 20
"""For requests under way: bodies, what they are parsed to, events that wait, grammars."""


@click.command()
@click.argument("model", default="smollm2")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."
)
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Answers made at once."
)
@click.option(
    "--queue", type=click.IntRange(0, 10000), default=64, show_default=True, help="Requests that may wait."
)
@click.option("--name", metavar="NAME", help="What clients call the model. [default: the name of its file]")
@click.option(
    "--api-key", envvar="RAMFORGE_API_KEY", metavar="KEY", help="Wanted from clients. [RAMFORGE_API_KEY]"
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name that clients may call this server by."
)
@click.option("--cors-origin", multiple=True, metavar="URL", help="A web page of others that may ask.")
@click.option("--ram", metavar="SIZE", help="What the whole process may take: 2G, 512M, 50%.")
@click.option(
    "--ctx",
    type=int,
    metavar="N",
    help="Tokens that a prompt and its answer may take. [default: 4096 at most]",
)
@click.option("--threads", type=int, default=0, metavar="N", help="[default: what this machine grants]")
@click.option("--backend", metavar="NAME", help="How to compute. [default: the best]")
@click.option("--kv-type", type=click.Choice(["f16", "f32", "q8_0"]), default="f16", show_default=True)
def serve(
    model: str,
    host: str,
    port: int,
    parallel: int,
    queue: int,
    name: str | None,
    api_key: str | None,
    allow_host: tuple[str, ...],
    cors_origin: tuple[str, ...],
    **opening: Any,
) -> None:
    """Answer clients of OpenAI's and Ollama's HTTP interfaces, and show a page to chat on.

    Requests that run at the same time share each pass over the weights. SIGTERM and Ctrl-C let running answers end.
    """
    # All of this is imported before the model is opened, so that it counts as part of the process.
    import ramforge_core
    from ramforge_core.scheduler import Scheduler
    from ramforge_serve.app import create_app
    from ramforge_serve.constrain import Grammars
    from ramforge_serve.guard import Rules, allowed_hosts, is_loopback
    from ramforge_serve.server import Server, configuration, listen
    from ramforge_serve.service import Service

    if api_key is not None and (api_key != api_key.strip() or not api_key.isprintable() or not api_key):
        raise click.BadParameter("a key is printable text without blanks around it", param_hint="--api-key")
    if not is_loopback(host) and not api_key:
        _log.warning("everybody who reaches %s can use this server; --api-key wants a key from them", host)
    grammars: list[Grammars | None] = []
    with (
        listen(host, port) as socket,
        ramforge_core.open(
            model,
            sequences=parallel,
            before_load=lambda t: grammars.append(Grammars.of(t)),
            reserve=_RESERVE_BYTES,
            **opening,
        ) as opened,
    ):
        scheduler = Scheduler(opened.engine, parallel, queue)
        service = Service(opened, scheduler, name or Path(model).stem, grammars[0])
        try:
            rules = Rules(
                api_key,
                allowed_hosts(host, allow_host),
                frozenset(cors_origin),
                body_bytes=_BODY_BYTES + _BODY_BYTES_PER_TOKEN * service.context,
                requests=2 * (parallel + queue),
            )
            Server(configuration(create_app(service, rules)), service).run([socket])
        finally:
            service.scheduler.close()
