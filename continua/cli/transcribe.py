"""``continua transcribe``: what is said in a WAV file, by a Whisper."""

from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from continua.cli.sizes import parse_at
from continua.convert.transcription import Heard, Transcriber
from continua.data.sound import read_wav


def run(
    model: Path, file: Path, language: str, tokenizer: Path | None, times: bool, at: str, device: torch.device
) -> None:
    """Listen, and print each window as soon as it is heard; the bar is on stderr."""
    console = Console(stderr=True)
    sound = read_wav(file)
    ear = Transcriber.open(model, tokenizer=tokenizer, at=parse_at(at), device=str(device))
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    spoken = False
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("listening", total=sound.seconds, at=_clock(0.0))
        for piece in ear.listen(sound, language or None):
            _show(piece, times, is_first=not spoken)
            spoken = spoken or bool(piece.text.strip())
            bar.update(task, completed=piece.end, at=f"{_clock(piece.end)} of {_clock(sound.seconds)}")
    if not times:
        typer.echo()
    console.print(f"{_clock(sound.seconds)} heard{'' if spoken else ', no speech in it'}", highlight=False)


def _show(piece: Heard, times: bool, is_first: bool) -> None:
    if times:
        typer.echo(f"[{_clock(piece.start)} – {_clock(piece.end)}] {piece.text.strip()}")
    else:
        typer.echo(piece.text.lstrip() if is_first else piece.text, nl=False)


def _clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> _clock(75.25)
    '01:15.2'
    """
    minutes, rest = divmod(int(seconds * 10), 600)
    return f"{minutes:02d}:{rest // 10:02d}.{rest % 10}"
