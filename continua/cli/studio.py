"""``continua studio``: the page in which a model is seen and steered, on this machine or as plain files."""

import importlib.util
import secrets
import tempfile
import threading
import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from continua.cli.export import held_out
from continua.cli.folders import open_model
from continua.cli.lift import working
from continua.cli.pareto import FILE, WINDOWS, measure
from continua.errors import ConfigError, install
from continua.lab import Pareto
from continua.recipes.runs import bundle_of as recipe_bundle
from continua.serve.start import BACKLOG, bound, running
from continua.studio.bundle import MODEL, Bundle, Drew, Sizes, bundle_of, write_model
from continua.studio.page import write_page
from continua.training import Run
from continua.training.run import ABOUT
from continua.training.sizes import native_sizes

HOST = "127.0.0.1"
DEMO = Path("runs", "demo")
GRACE = 2  # seconds that streams have to end
WRITES = ("onnx", "onnxruntime", "onnxscript")  # packages that the file of the model needs
SERVES = ("fastapi", "uvicorn")


@dataclass(frozen=True)
class Opening:
    """The options of the command."""

    port: int = 8001
    browser: bool = True
    export: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError("a port is a number up to 65535", got=self.port, remedy="Leave it out for 8001.")


def run(path: Path | None, wish: Opening, device: torch.device) -> None:
    """Prepare the model of a run; write the page, or serve it until Ctrl-C."""
    console = Console(stderr=True)
    require_packages(WRITES if wish.export is not None else (*WRITES, *SERVES))
    folder = path or _demo(console, device)
    with tempfile.TemporaryDirectory(prefix="continua-studio-") as place:
        model = Path(place) / MODEL
        bundle = prepared(console, folder, model, device)
        if wish.export is not None:
            write_page(wish.export, model, bundle)
            words = f"written: {wish.export}; any static host serves it, for example: python -m http.server -d"
            console.print(f"{words} {wish.export}", markup=False, soft_wrap=True)
            return
        _serve(console, folder, model, bundle, wish)


def require_packages(names: tuple[str, ...]) -> None:
    """Say in one sentence, before anything is trained or exported, what has to be installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        remedy = f"Install both extras: {install('onnx,serve')}."
        raise ConfigError(f"the studio needs {', '.join(names)}", got=f"no {', '.join(missing)}", remedy=remedy)


def _demo(console: Console, device: torch.device) -> Path:
    """The demo run, made where it is not there."""
    if not (DEMO / ABOUT).is_file():
        from continua.cli.demo import run as demo

        console.print(f"There is no run in {DEMO}: the demo is trained first (about four minutes).", markup=False)
        demo(DEMO, "resume", [], False, device)
    return DEMO


def prepared(console: Console, folder: Path, model: Path, device: torch.device) -> Bundle:
    """Export the model of a run into a file, and all that the page shows of it."""
    if not (folder / ABOUT).is_file():
        remedy = "Give the folder of a run: continua runs lists them. Or leave it out for the demo."
        raise ConfigError("the studio opens a run", got=folder, remedy=remedy)
    opened = open_model(folder)
    tokens = opened.tokens()
    with working(console, f"exporting {folder}"):
        about = write_model(opened.model, tokens, model)
    own = Run.open(folder)
    sizes = Sizes(_table(console, own, device), _drew(own, opened.model))
    made = bundle_of(folder.resolve().name, opened.model, about, sizes, held_out(folder))
    return replace(made, model_bytes=model.stat().st_size)


def _table(console: Console, run: Run, device: torch.device) -> Pareto:
    """The sizes that were measured; where none were, that is done now."""
    kept = run.folder / FILE
    if kept.is_file():
        return Pareto.load(kept)
    found = measure(console, run, None, WINDOWS, device)
    try:
        found.save(kept)
    except OSError as problem:
        console.print(f"The table of sizes is not kept: {problem.strerror or problem}.", markup=False)
    return found


def _drew(run: Run, model: torch.nn.Module) -> Drew:
    law = recipe_bundle(run).training.elastic
    native = native_sizes(model)
    return law.over(model).drew if law is not None else lambda sizes: dict(sizes) == native


def _serve(console: Console, folder: Path, model: Path, bundle: Bundle, wish: Opening) -> None:
    from continua.serve.gate import Gate
    from continua.studio.app import BODY, Behind, studio_application
    from continua.studio.live import Runs
    from continua.studio.work import Work

    listens = bound(HOST, wish.port)
    port = listens.getsockname()[1]
    token = secrets.token_urlsafe(24)
    home = folder.resolve().parent
    behind = Behind(replace(bundle, live=True), model, Runs(home), Work(home), Gate(token, body=BODY))
    listens.listen(BACKLOG)
    address = f"http://{HOST}:{port}/#token={token}"
    console.print(f"the studio: {address} (Ctrl-C ends)", markup=False, highlight=False, soft_wrap=True)
    if wish.browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    running(studio_application(behind, port), GRACE).run(sockets=[listens])
    console.print("stopped", markup=False)
