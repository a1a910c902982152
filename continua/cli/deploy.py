"""Commands that take a model elsewhere. As in the command line itself, nothing heavy is imported before one runs."""

from pathlib import Path
from typing import Annotated

import typer

from continua.cli.options import Device, Threads, ready


def export(
    folder: Annotated[Path, typer.Argument(help="A run, a folder of model.save() or one of Hugging Face.")],
    file: Annotated[
        Path, typer.Argument(help="FILE.onnx, FILE.pt2 (a program of torch), or a folder for transformers.")
    ],
    at: Annotated[str, typer.Option(help="One size alone, for example d=64,h=2,z=3; all of them if left out.")] = "",
    *,
    int8: Annotated[bool, typer.Option("--int8", help="Matrices in eight bits; the loss of that is printed.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Attention weights and states along depth as outputs.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Write a model as one file that runs without torch, checked against torch before it gets its name."""
    from continua.cli.export import Wishes
    from continua.cli.export import run as go

    ready("cpu", threads)
    go(folder, file, Wishes(at, int8, probe))


def serve(
    run: Annotated[Path, typer.Argument(help="A run, a folder of model.save(), or a Hugging Face folder.")],
    host: Annotated[str, typer.Option(help="Beyond this machine CONTINUA_API_KEY has to be set.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    name: Annotated[str, typer.Option(help="What the model is called; by default as its folder.")] = "",
    batch: Annotated[int, typer.Option(help="Texts that are written at once.")] = 32,
    queue: Annotated[int, typer.Option(help="Texts that may wait; more are answered with 429.")] = 256,
    context: Annotated[int, typer.Option(help="Tokens of a text at most, prompt and answer.")] = 1024,
    *,
    latency: Annotated[
        float | None, typer.Option(help="Milliseconds for requests that name no latency_ms themselves.")
    ] = None,
    worst: Annotated[
        float | None,
        typer.Option(help="Percent of held-out loss above the native size; no worse size is chosen, whatever waits."),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve a model over OpenAI's API, with a size that follows load and deadlines."""
    from continua.cli.serve import Listening
    from continua.cli.serve import run as go

    go(run, Listening(host, port, name, batch, queue, context, latency, worst), ready(device, threads))


def studio(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run of an elastic text model; the demo if left out, made where it is absent."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8001,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    out: Annotated[
        Path | None, typer.Option("--export", help="Write the page and its model into a new folder instead.")
    ] = None,
    *,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Open a page in which the model runs in the browser, at every size, beside the theory (on this machine alone)."""
    from continua.cli.studio import Opening
    from continua.cli.studio import run as go

    go(run, Opening(port, browser, out), ready(device, threads))


def plan(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A run, a folder of model.save() or of Hugging Face; or --d, --heads, --depth."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="a100, h100, h200, b200 or mi300x by published figures, or a .json with your own.")
    ] = "h100",
    devices: Annotated[int, typer.Option(help="How many of them.")] = 8,
    batch: Annotated[int, typer.Option(help="Samples of a step, over all devices.")] = 64,
    context: Annotated[int, typer.Option(help="Tokens of a sample.")] = 2048,
    *,
    d: Annotated[int, typer.Option("--d", help="The width of a GPT, where no folder is named.")] = 1600,
    heads: Annotated[int, typer.Option(help="Its heads.")] = 25,
    depth: Annotated[int, typer.Option(help="Its layers.")] = 48,
    vocab: Annotated[int, typer.Option(help="Its tokens.")] = 50257,
    precision: Annotated[str, typer.Option(help="bfloat16 (weights in full) or float32.")] = "bfloat16",
    optimiser: Annotated[str, typer.Option(help="adamw, muon or sgd.")] = "adamw",
    efficiency: Annotated[float | None, typer.Option(help="The share of FLOPs that a step reaches; 0.4.")] = None,
    memory: Annotated[float | None, typer.Option(help="Gigabytes of a device, instead of its own.")] = None,
    tflops: Annotated[float | None, typer.Option(help="Its dense 10¹² FLOP/s, likewise.")] = None,
    node: Annotated[int | None, typer.Option(help="Devices in one case, likewise.")] = None,
    inside: Annotated[float | None, typer.Option(help="GB/s from one to the next in a case, likewise.")] = None,
    outside: Annotated[float | None, typer.Option(help="GB/s of a device to other cases, likewise.")] = None,
    out: Annotated[Path | None, typer.Option(help="A picture from 8 to 4,096 devices.")] = None,
) -> None:
    """Say before training whether a model fits on devices, how long a step takes, and which mesh is best."""
    from continua.cli.plan import Figures, Shape, Wishes
    from continua.cli.plan import run as go

    wishes = Wishes(device, devices, batch, context, precision, optimiser, out)
    go(folder, wishes, Shape(d, heads, depth, vocab), Figures(efficiency, memory, tflops, node, inside, outside))


def gather(
    run: Annotated[Path, typer.Argument(help="A run of many processes.")],
) -> None:
    """Write the checkpoints of a run that lie in shards as one file of weights each, in their place."""
    from continua.cli.gather import run as go

    go(run)
