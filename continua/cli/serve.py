"""``continua serve``: an OpenAI-compatible server of a run, a model folder or a Hugging Face folder."""

import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from continua.axes import Discretisation
from continua.cli.folders import Opened, open_model
from continua.cli.pareto import FILE
from continua.convert.chat import chat_ends, template_in
from continua.errors import ConfigError
from continua.lab import Pareto
from continua.serve import Limits
from continua.serve.service import Rules, Served, Service, size_name
from continua.serve.start import BACKLOG, bound, check_open, web_server

KEY = "CONTINUA_API_KEY"
SWITCH = 2e-4  # seconds that one thread may keep the other waiting: a pass has many small operations


@dataclass(frozen=True)
class Listening:
    """Where to listen, what to call the model, and how much to take on: the options of the command, checked."""

    host: str
    port: int
    name: str
    batch: int = 32
    queue: int = 256
    context: int = 1024
    latency: float | None = None  # milliseconds
    worst: float | None = None  # percent

    def __post_init__(self) -> None:
        for what, count in (("--batch", self.batch), ("--queue", self.queue), ("--context", self.context)):
            if count < 1:
                raise ConfigError(f"{what} counts from one", got=count, remedy=f"Give {what} 1 or more.")
        if self.worst is not None and not 0 <= self.worst < math.inf:
            raise ConfigError("--worst is percent of the loss", got=self.worst, remedy="Use 5, or leave it out.")
        if not 0 <= self.port < 2**16:
            raise ConfigError("a port is a number up to 65535", got=self.port, remedy="Leave it out for 8000.")
        check_open(self.host, os.environ.get(KEY))

    @property
    def rules(self) -> Rules:
        """The limits of a request."""
        seconds = None if self.latency is None else self.latency / 1e3
        worst = None if self.worst is None else self.worst / 100
        return Rules(context=self.context, tokens=self.context, latency=seconds, worst=worst)


def run(path: Path, where: Listening, device: torch.device) -> None:
    """Load, measure, listen; end gracefully."""
    from continua.serve.app import Gate, Server
    from continua.serve.embedding import Embedder

    console = Console(stderr=True)
    listens = bound(where.host, where.port)
    limits = Limits(where.batch, where.queue)
    opened = open_model(path)
    served = served_of(opened, where.name or path.resolve().name, device)
    service = None
    embedder = None
    if served.writes:
        with Progress(console=console, transient=True) as bar:
            shown = bar.add_task("timing sizes", total=None)
            service = Service(served, limits, where.rules, lambda done, of: bar.update(shown, completed=done, total=of))
        _tell(console, service)
    else:
        embedder = Embedder(served, where.context)
    server = Server(service, embedder, Gate(os.environ.get(KEY)))
    web = web_server(server)
    for ending in (signal.SIGTERM, signal.SIGINT):  # before the web server has its own, and when it raises them again
        signal.signal(ending, lambda *_: setattr(web, "should_exit", True))
    listens.listen(BACKLOG)  # who reads the next line may connect
    port = listens.getsockname()[1]
    console.print(
        f"serving {served.name} at http://{where.host}:{port}/v1 (Ctrl-C ends)", markup=False, highlight=False
    )
    sys.setswitchinterval(SWITCH)
    web.run(sockets=[listens])
    console.print("stopped", markup=False)


def served_of(opened: Opened, name: str, device: torch.device) -> Served:
    """What a folder serves: its model, tokeniser, chat template, and losses by size where they were measured."""
    model = opened.model.to(device).eval()
    losses: dict[str, tuple[Discretisation, float]] = {}
    table = opened.folder / FILE
    if table.is_file():
        for point in Pareto.load(table).points:
            chosen = model.settle(point.at)
            losses.setdefault(size_name(chosen), (chosen, point.loss))
    template = template_in(opened.folder) if opened.is_hf or opened.run is None else None
    tokens = opened.tokens()
    return Served(name, model, tokens, chat_ends(template, tokens, opened.special()), template, losses)


def _tell(console: Console, service: Service) -> None:
    """The table of sizes."""
    for size in service.front.sizes:
        loss = "" if size.loss is None else f", held-out loss {size.loss:.3f}"
        most = f"{1e3 * size.step[-1]:.1f} ms for {size.batches[-1]}" if len(size.batches) > 1 else ""
        words = f"  {size.name:24s} {1e3 * size.step[0]:.1f} ms a token, {most}{loss}"
        console.print(words, markup=False, highlight=False)
