"""Activations as ``config.json`` names them."""

from continua.convert.architecture import Settings
from continua.errors import CheckpointError
from continua.operators import GELU, Activation, QuickGELU, ReLU, SiLU

NAMED: dict[str, Activation] = {
    "gelu": GELU(),
    "gelu_new": GELU(tanh=True),
    "gelu_fast": GELU(tanh=True),
    "gelu_pytorch_tanh": GELU(tanh=True),
    "quick_gelu": QuickGELU(),
    "relu": ReLU(),
    "silu": SiLU(),
    "swish": SiLU(),
}


def activation(config: Settings, key: str, default: str) -> Activation:
    """The function that an entry names."""
    name = config.take(key, str, default)
    if name not in NAMED:
        remedy = f"Known are {', '.join(NAMED)}; others are not in the zoo yet."
        raise CheckpointError(f"this {key} is not read", got=repr(name), remedy=remedy)
    return NAMED[name]


def activation_described(phi: Activation) -> str:
    """The first name of a function."""
    return next(name for name, known in NAMED.items() if known == phi)
