"""Commands that write text. Nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def generate(
    run: Annotated[Path, typer.Argument(help="A run of text, a folder of Hugging Face or of model.save(), org/name.")],
    prompt: Annotated[
        str, typer.Option(help="What the text begins with; beside an encoder, what it answers to.")
    ] = "\n",
    at: Annotated[
        str, typer.Option(help="Another size, for example d=64,z=3; or a budget: latency=5ms, flops=20M, memory=2MB.")
    ] = "",
    tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    which: Annotated[str, typer.Option(help="best or last")] = "best",
    *,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many likeliest tokens only.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that reach this probability only.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed writes the same text.")] = 0,
    samples: Annotated[int, typer.Option(help="Write this many texts, the next with the next seed.")] = 1,
    draft: Annotated[
        str,
        typer.Option(help="A smaller size that writes ahead, such as d=64,h=2,z=2; auto measures. Same text."),
    ] = "",
    ahead: Annotated[int, typer.Option(help="How many tokens --draft writes before they are read.")] = 4,
    compiles: Annotated[bool, typer.Option("--compile", help="Compile the steps: worth it for long texts.")] = False,
    streams: Annotated[bool, typer.Option("--stream/--no-stream", help="Print each token as it is written.")] = True,
    device: Device = "auto",
    threads: Threads = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the recipe file that the run names, and read the paths it names.")
    ] = False,
) -> None:
    """Let a model write, at its own size or at another; one of Hugging Face ends where its text ends."""
    from continua.cli.generate import Writing
    from continua.cli.generate import run as go

    writing = Writing(tokens, temperature, top_k, top_p, seed, samples, draft, ahead, compiles)
    go(run, prompt, at, which, writing, streams, ready(device, threads), trust)


def chat(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder with a chat template, or a cached org/name.")],
    system: Annotated[str, typer.Option(help="What the model is told before the first message.")] = "",
    tokens: Annotated[int, typer.Option(help="How many tokens an answer has at most.")] = 512,
    at: Annotated[str, typer.Option(help="Another size, for example z=3.")] = "",
    *,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many likeliest tokens only.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that reach this probability only.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Talk with a model: each line is a message, and its answer is printed as it is written. Works in a pipe too."""
    from continua.cli.chat import run as go
    from continua.cli.generate import Writing

    cut = 1.0 if temperature == 0 else top_p
    go(folder, system, at, Writing(tokens, temperature, top_k, cut, seed), ready(device, threads))


def transcribe(
    model: Annotated[
        Path, typer.Argument(help="A Whisper: a Hugging Face folder, a cached org/name, or a .pt file of OpenAI's.")
    ],
    file: Annotated[Path, typer.Argument(help="A WAV file, of any rate and length.")],
    language: Annotated[str, typer.Option(help="What is spoken, such as de; found out if left out.")] = "",
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or .tiktoken file, where none lies beside the model.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="A line for each window, with its times.")] = False,
    at: Annotated[str, typer.Option(help="Another size, for example z=3.")] = "",
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write down what is said in a WAV file."""
    from continua.cli.transcribe import run as go

    go(model, file, language, tokenizer, times, at, ready(device, threads))
