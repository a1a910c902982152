"""Options that many commands share, and what they do before a command computes."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda or mps; auto is a CUDA GPU if there is one, else the CPU.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", help="Threads of the CPU. By default OMP_NUM_THREADS, or at most two.", show_default=False
    ),
]


def ready(device: str = "auto", threads: int | None = None) -> "torch.device":
    """Set the threads and find the device; one that is absent is refused before anything is read or written."""
    from continua.devices import find_device, use_threads

    use_threads(threads)
    return find_device(device)
