"""``ramforge bench``: how fast a model runs here, or every kernel by itself."""

from __future__ import annotations

import json

import click
from click.core import ParameterSource

from ramforge_cli.console import Progress
from ramforge_cli.options import debug_option, json_option, ram_option


@click.command()
@click.argument("model", required=False)
@click.option("--prompt", type=int, default=128, show_default=True, metavar="N", help="Tokens of the prompt.")
@click.option("--gen", type=int, default=32, show_default=True, metavar="N", help="Tokens made after it.")
@click.option("--repeat", type=int, default=5, show_default=True, metavar="N", help="Rounds that count.")
@click.option("--threads", type=int, default=0, metavar="N", help="[default: what this machine grants]")
@ram_option
@click.option("--kernels", is_flag=True, help="Measure the kernels of all quant formats instead of a model.")
@json_option
@debug_option
@click.pass_context
def bench(
    ctx: click.Context,
    model: str | None,
    prompt: int,
    gen: int,
    repeat: int,
    threads: int,
    ram: str | None,
    kernels: bool,
    as_json: bool,
) -> None:
    """Measure how fast a model runs here.

    Load, first token, tokens per second of prompt and answer, beside what memory and disk can give, and peak memory.
    With --kernels and no MODEL: bytes and operations per second by quant format and batch size.
    """
    from ramforge_core import benchmarking

    found: benchmarking.KernelBenchmark | benchmarking.ModelBenchmark
    if kernels:
        _refuse_options_of_a_model(ctx)
        with Progress("measuring kernels", _formats) as running:
            found = benchmarking.benchmark_kernels(threads=threads, running=running)
    elif model is None:
        raise click.UsageError("name a MODEL, or give --kernels")
    else:
        with Progress("loading") as loading, Progress("measuring", _tokens) as running:
            found = benchmarking.benchmark_model(
                model,
                prompt=prompt,
                gen=gen,
                repeat=repeat,
                threads=threads,
                ram=ram,
                loading=loading,
                running=running,
            )
    click.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if as_json else found.render())


def _refuse_options_of_a_model(ctx: click.Context) -> None:
    for name in ("model", "prompt", "gen", "repeat", "ram"):
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            what = "MODEL" if name == "model" else f"--{name}"
            raise click.UsageError(f"--kernels measures no model: leave {what} out")


def _tokens(n: float) -> str:
    return f"{n:.0f} tokens"


def _formats(n: float) -> str:
    return f"{n:.0f} formats"
