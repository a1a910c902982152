"""The tokens by which a Whisper is told what to write: their numbers, and how texts are made of the others."""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from continua.convert.byte_ranks import ByteRanks, read_byte_ranks
from continua.convert.special_tokens import generation_settings, token_numbers
from continua.convert.tokenizer import TOKENIZER, Pieces, read_tokeniser, read_tokeniser_file
from continua.errors import CheckpointError

RANKS = ".tiktoken"
ENGLISH = 51864  # tokens of a model for English alone; others have one more, and one for each further language
IN_ORDER = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = IN_ORDER.split()
MARKS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
SYMBOLS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *MARKS.split()]
NOTES = "♩♪♫♬♭♮♯"


@runtime_checkable
class Spelling(Protocol):
    """Turns tokens into text."""

    def text(self, ids: Iterable[int]) -> str:
        """What these tokens say."""
        ...


@dataclass(frozen=True)
class SpelledByPieces:
    """Texts by the tokeniser of a Hugging Face folder."""

    pieces: Pieces

    def text(self, ids: Iterable[int]) -> str:
        """What these tokens say, without special ones."""
        return self.pieces.decode(torch.tensor([*ids], dtype=torch.int64))


@dataclass(frozen=True)
class SpeechTokens:
    """What a transcript starts and ends with, the tokens that say how to write, and those that are never written."""

    start: int
    end: int
    languages: Mapping[str, int]
    transcribe: int | None
    no_timestamps: int | None
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()

    @property
    def no_speech(self) -> int | None:
        """The token for a window without speech: it stands before the one that leaves times out."""
        return None if self.no_timestamps is None or self.no_timestamps - 1 <= self.end else self.no_timestamps - 1


def usual_tokens(vocab: int) -> SpeechTokens | None:
    """OpenAI's own numbers, which follow from how many tokens there are; None for another number of them.

    Behind the words: the end, the start, languages, two tasks, three marks, no timestamps, 1501 times.

    >>> usual_tokens(51864).no_timestamps, usual_tokens(51865).transcribe, usual_tokens(51866).languages["yue"]
    (50362, 50359, 50358)
    """
    if not ENGLISH <= vocab <= ENGLISH + 2:
        return None
    several = vocab > ENGLISH
    count = 99 + max(0, vocab - ENGLISH - 1)
    end = 50256 + several
    first = end + 2
    behind = first + count
    return SpeechTokens(
        start=end + 1,
        end=end,
        languages={name: first + i for i, name in enumerate(LANGUAGES[:count])} if several else {},
        transcribe=behind + 1 if several else None,
        no_timestamps=behind + 5,
        never=tuple(range(end + 1, vocab)),
    )


def folder_tokens(folder: Path, vocab: int) -> SpeechTokens:
    """As ``generation_config.json`` or ``config.json`` has them, and OpenAI's numbers for what neither says."""
    said = generation_settings(folder)
    usual = usual_tokens(vocab)
    start = _token(said.get("decoder_start_token_id"), vocab)
    end = _token(said.get("eos_token_id"), vocab)
    if start is None or end is None:
        if usual is None:
            remedy = "Copy the generation_config.json of the model into its folder."
            raise CheckpointError(
                "a transcript starts with decoder_start_token_id and ends with eos_token_id",
                got=f"not both in {folder}",
                remedy=remedy,
            )
        start = usual.start
        end = usual.end
    named = said.get("lang_to_id")
    languages = named if isinstance(named, dict) else {}
    tasks = said.get("task_to_id")
    found = SpeechTokens(
        start=start,
        end=end,
        languages={name.strip("<|>"): i for name, i in languages.items() if _token(i, vocab) is not None},
        transcribe=_token(tasks.get("transcribe"), vocab) if isinstance(tasks, dict) else None,
        no_timestamps=_token(said.get("no_timestamps_token_id"), vocab),
        never=token_numbers(said.get("suppress_tokens"), vocab),
        never_first=token_numbers(said.get("begin_suppress_tokens"), vocab),
    )
    if usual is not None and found.no_timestamps is None:
        found = replace(
            found, languages=usual.languages, transcribe=usual.transcribe, no_timestamps=usual.no_timestamps
        )
    times = () if found.no_timestamps is None else range(found.no_timestamps, vocab)
    return replace(found, never=tuple(sorted({*found.never, *times} - {end})))


def with_silences(tokens: SpeechTokens, ranks: ByteRanks) -> SpeechTokens:
    """Never write what is not spoken (brackets, notes, dashes), and no transcript of a blank: OpenAI's usual choice."""
    never = {ranks.parts(" -")[0], ranks.parts(" '")[0]}
    for symbol in (*SYMBOLS, *NOTES):
        for word in (symbol, f" {symbol}"):
            parts = ranks.parts(word)
            if len(parts) == 1 or symbol in NOTES:
                never.add(parts[0])
    return replace(tokens, never=tuple(sorted(never | {*tokens.never})), never_first=(ranks.parts(" ")[0], tokens.end))


def find_spelling(model_file: Path, named: Path | None, vocab: int) -> Spelling:
    """The tokeniser beside a file of OpenAI's, the one that was named, or that of the package openai-whisper."""
    usual = f"{'gpt2' if vocab == ENGLISH else 'multilingual'}{RANKS}"
    beside = model_file.parent
    places = [named] if named is not None else [beside / TOKENIZER, beside / usual, *_packaged(usual)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        got = f"no {TOKENIZER} and no {usual} beside {model_file}" if named is None else f"no file {named}"
        remedy = f"Copy {usual} of the package openai-whisper beside the model, or name it: --tokenizer FILE."
        raise CheckpointError("a transcript needs a tokeniser", got=got, remedy=remedy)
    if file.suffix == RANKS:
        found = read_byte_ranks(file)
        usual_end = usual_tokens(vocab)
        if usual_end is not None and len(found.tokens) != usual_end.end:
            got = f"{len(found.tokens)} tokens where the model has {usual_end.end}"
            raise CheckpointError("the tokeniser belongs to another model", got=got, remedy=f"Use {usual}.")
        return found
    return SpelledByPieces(read_tokeniser_file(file))


def folder_spelling(folder: Path, named: Path | None, vocab: int) -> Spelling:
    """The tokeniser of a folder, or the one that was named."""
    return SpelledByPieces(read_tokeniser(folder)) if named is None else find_spelling(folder / "none", named, vocab)


def _packaged(name: str) -> list[Path]:
    """Where the package openai-whisper keeps the file, if it is installed; it is looked for, not imported."""
    found = importlib.util.find_spec("whisper")
    places = [] if found is None else [*(found.submodule_search_locations or ())]
    return [Path(place) / "assets" / name for place in places]


def _token(said: Any, vocab: int) -> int | None:
    numbers = token_numbers(said, vocab)
    return numbers[0] if numbers else None
