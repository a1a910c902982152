"""The tokens by which generation starts and ends, as a folder of Hugging Face names them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.files import fault_of
from continua.models.store import CONFIG, read_json

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class SpecialTokens:
    """Numbers of tokens: what begins a text, what ends one, and what a decoder starts with beside its source."""

    begin: int | None = None
    ends: tuple[int, ...] = ()
    start: tuple[int, ...] = ()


def special_tokens(folder: Path, vocab: int) -> SpecialTokens:
    """Read them from ``generation_config.json``, and what is not there from ``config.json``; others are left out."""
    said = generation_settings(folder)
    begin = token_numbers(said.get("bos_token_id"), vocab)
    start = token_numbers(said.get("decoder_start_token_id"), vocab)[:1]
    forced = token_numbers(said.get("forced_bos_token_id"), vocab)[:1] if start else ()
    return SpecialTokens(
        begin=begin[0] if begin else None,
        ends=token_numbers(said.get("eos_token_id"), vocab),
        start=start + forced,
    )


def generation_settings(folder: Path) -> dict[str, Any]:
    """Both files, of which the one for generation counts."""
    found: dict[str, Any] = {}
    for name in (CONFIG, GENERATION):
        if fault_of(folder / name) is None:
            found |= _given(read_json(folder / name))
    return found


def _given(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def token_numbers(said: Any, vocab: int) -> tuple[int, ...]:
    """One number or a list of them; those that are tokens."""
    several = said if isinstance(said, list) else [said]
    return tuple(one for one in several if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < vocab)
