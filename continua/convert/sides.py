"""The layers of an encoder and a decoder as BART and those after it name them."""

from collections.abc import Iterator

from continua.convert.names import Entry, Layout, norm

SELF = ("self_attn",)
BOTH = ("self_attn", "encoder_attn")
LETTERS = (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj"))


def side_entries(side: str, attentions: tuple[str, ...], *, pre: bool, biased: str = "qkvo") -> Iterator[Entry]:
    """All layers of one side; norms stand before each branch (``pre``) or behind it."""
    layer = f"{side}.layers.{{z}}"
    for i, attention in enumerate(attentions):
        ours = _branch(side, i, pre)
        yield from norm(_norm(side, i, pre), f"{layer}.{attention}_layer_norm")
        for letter, name in LETTERS:
            layout = Layout(1 if letter == "o" else 2)
            yield Entry(f"{ours}.{letter}.coefficients", f"{layer}.{attention}.{name}.weight", layout)
            if letter in biased:
                yield Entry(f"{ours}.b{letter}.coefficients", f"{layer}.{attention}.{name}.bias", flat=True)
    last = len(attentions)
    ours = _branch(side, last, pre)
    yield from norm(_norm(side, last, pre), f"{layer}.final_layer_norm")
    for i in (1, 2):
        yield Entry(f"{ours}.w{i}.coefficients", f"{layer}.fc{i}.weight")
        yield Entry(f"{ours}.b{i}.coefficients", f"{layer}.fc{i}.bias", flat=True)


def _branch(side: str, i: int, pre: bool) -> str:
    return f"{side}.block.parts.{i}.inner" if pre else f"{side}.block.parts.{2 * i}"


def _norm(side: str, i: int, pre: bool) -> str:
    return f"{side}.block.parts.{i}.norm" if pre else f"{side}.block.parts.{2 * i + 1}.norm"
