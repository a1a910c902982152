"""Speech to text with a Whisper: windows of sound, a spectrogram of each, and the likeliest token one after another."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continua.axes import Discretisation
from continua.convert.byte_ranks import ByteRanks
from continua.convert.hub import located
from continua.convert.huggingface import from_hf
from continua.convert.speech_tokens import (
    SpeechTokens,
    Spelling,
    find_spelling,
    folder_spelling,
    folder_tokens,
    usual_tokens,
    with_silences,
)
from continua.convert.whisper import from_whisper
from continua.data.sound import Sound, read_wav
from continua.data.spectrogram import HOP, RATE, log_mel
from continua.devices import find_device
from continua.errors import CheckpointError, ConfigError, nearest
from continua.models import Batch, EncoderDecoder, Frames, View
from continua.models.frames import STRIDE
from continua.settings import checked
from continua.typing import Float, Tensor

SILENT = 1e-4  # largest sample of a window that is not listened to: −80 dB
NO_SPEECH = 0.6  # probability of no speech from which on …
UNSURE = -1.0  # … a text whose mean logarithm of probabilities is lower is left out (Radford et al. 2023)
SEARCHED = 6  # of so many parts of a window the last is searched for a quiet moment to cut at
QUIET = 0.2  # seconds of such a moment


@dataclass(frozen=True)
class Heard:
    """What was said between two moments, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """What was said, window by window; ``str`` joins it."""

    pieces: tuple[Heard, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self.pieces).strip()

    def __str__(self) -> str:
        return self.text


class Dictation:
    """A ``Sampling`` that writes one transcript: first the tokens that say how, then the likeliest of those allowed."""

    repetition_penalty = 1.0

    def __init__(self, tokens: SpeechTokens, language: int | None, vocab: int) -> None:
        self.tokens = tokens
        self.never = _flags(tokens.never, vocab)
        self.never_first = _flags((*tokens.never, *tokens.never_first), vocab)
        told = [language, tokens.transcribe] if tokens.languages else []
        marks = [] if tokens.no_timestamps is None else [tokens.no_timestamps]
        self.told: list[int | None] = [*told, *marks]  # None: the likeliest language
        self.step = 0
        self.no_speech = 0.0
        self.logs: list[float] = []

    def choose(self, logits: Float[Tensor, "b v"], seen: Any, generator: torch.Generator | None) -> Tensor:
        """The next token of one sample."""
        step = self.step
        self.step += 1
        if step == 0 and self.tokens.no_speech is not None:
            self.no_speech = float(logits[0].softmax(-1)[self.tokens.no_speech])
        if step < len(self.told):
            token = self.told[step]
            return torch.tensor([self._language(logits) if token is None else token], device=logits.device)
        never = self.never_first if step == len(self.told) else self.never
        logs = logits.masked_fill(never.to(logits.device), -torch.inf).log_softmax(-1)
        best = logs.argmax(-1)
        self.logs.append(float(logs[0, best[0]]))
        return best

    def _language(self, logits: Tensor) -> int:
        known = list(self.tokens.languages.values())
        return known[int(logits[0, known].argmax())]

    @property
    def is_speech(self) -> bool:
        """Whether somebody speaks: else a Whisper writes something nevertheless, and is unsure of it."""
        mean = sum(self.logs) / max(1, len(self.logs))
        return self.no_speech <= NO_SPEECH or mean > UNSURE


@dataclass(frozen=True)
class Transcriber:
    """A Whisper on one discretisation, with its tokens: opened once, it listens to many sounds."""

    view: View
    tokens: SpeechTokens
    spelling: Spelling

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        tokenizer: str | Path | None = None,
        at: Discretisation | None = None,
        device: str = "auto",
    ) -> "Transcriber":
        """Open a Hugging Face folder (or a cached ``org/name``), or one of OpenAI's .pt files with a tokeniser."""
        path = located(place)
        named = None if tokenizer is None else Path(tokenizer)
        is_file = path.suffix == ".pt" or path.is_file()
        model = from_whisper(path, torch.float32) if is_file else from_hf(path, torch.float32)
        _require_whisper(model, path)
        vocab: int = model.decoder.embed.vocab  # type: ignore[assignment]
        spelling = find_spelling(path, named, vocab) if is_file else folder_spelling(path, named, vocab)
        tokens = _of_file(vocab, path) if is_file else folder_tokens(path, vocab)
        if isinstance(spelling, ByteRanks):
            tokens = with_silences(tokens, spelling)
        chosen = Discretisation() if at is None else at
        return cls(model.to(find_device(device)).eval().at(chosen), tokens, spelling)

    @property
    def model(self) -> Any:
        """The Whisper."""
        return self.view.model

    @property
    def window(self) -> int:
        """Samples of a window: thirty seconds of OpenAI's models."""
        count: int = self.model.encoder.embed.position.count
        return count * STRIDE * HOP

    def listen(self, sound: Sound, language: str | None = None) -> Iterator[Heard]:
        """Yield what is said, window by window; a window ends at a quiet moment."""
        spoken = None if language is None else self._number(language)
        if sound.rate != RATE:
            sound = sound.at_rate(RATE)
        if not len(sound.samples):
            raise ConfigError("a sound has samples", got="none", remedy="Give some sound.")
        for start, end in cuts(sound.samples, self.window):
            said = self.hear(sound.samples[start:end], spoken)
            yield Heard(start / RATE, end / RATE, said)

    @torch.no_grad()
    def hear(self, samples: Float[Tensor, "n"], language: int | None = None) -> str:
        """What is said in one window."""
        if float(samples.abs().max()) < SILENT:
            return ""
        weight = next(self.model.parameters())
        padded = torch.nn.functional.pad(samples, (0, self.window - len(samples)))
        shown = log_mel(padded.to(weight), self.model.encoder.embed.channels)
        vocab = self.model.decoder.embed.vocab
        dictation = Dictation(self.tokens, language, vocab)
        room = self.model.decoder.embed.room
        start = torch.tensor([[self.tokens.start]], device=weight.device)
        new = self.view.stream(
            Batch(start, source=Batch(shown[None])),
            tokens=max(1, min(room // 2 + len(dictation.told), room)),
            sampling=dictation,
            stop=(self.tokens.end,),
        )
        ids = [int(token) for token in new][len(dictation.told) :]
        return self.spelling.text(i for i in ids if i != self.tokens.end) if dictation.is_speech else ""

    def _number(self, language: str) -> int:
        known = self.tokens.languages
        if not known:
            raise ConfigError("this model knows one language", got=repr(language), remedy="Leave the language out.")
        if language not in known:
            raise ConfigError("this language is not known", got=repr(language), remedy=nearest(language, list(known)))
        return known[language]


@checked
def transcribe(
    place: str | Path,
    sound: str | Path | Sound,
    *,
    language: str | None = None,
    tokenizer: str | Path | None = None,
    at: Discretisation | None = None,
    device: str = "auto",
    watch: Callable[[Heard, float], None] | None = None,
) -> Transcript:
    """Return what is said in a WAV file or a ``Sound``, by the Whisper of a Hugging Face folder or of OpenAI's file.

    A model of several languages finds out which one is spoken unless ``language`` names it (``"de"``). ``tokenizer``
    names a ``tokenizer.json`` or a ``.tiktoken`` file where none lies beside the model. ``at`` is another size of the
    model. ``watch`` hears each window, and how many seconds there are in all.
    """
    heard = sound if isinstance(sound, Sound) else read_wav(sound)
    ear = Transcriber.open(place, tokenizer=tokenizer, at=at, device=device)
    pieces = []
    for piece in ear.listen(heard, language):
        pieces.append(piece)
        if watch is not None:
            watch(piece, heard.seconds)
    return Transcript(tuple(pieces))


def cuts(samples: Float[Tensor, "n"], window: int) -> Iterator[tuple[int, int]]:
    """Where windows start and end: none is longer than ``window``, and all but the last end where it is quiet.

    >>> list(cuts(torch.ones(50), 60)), [end - start for start, end in cuts(torch.zeros(150), 60)][-1] <= 60
    ([(0, 50)], True)
    """
    start = 0
    while len(samples) - start > window:
        searched = max(1, window // SEARCHED)
        moment = max(1, min(math.ceil(QUIET * RATE), searched // 4))
        last = samples[start + window - searched : start + window]
        loud = last.square().unfold(0, moment, max(1, moment // 4)).mean(1)
        quiet = int(loud.argmin()) * max(1, moment // 4) + moment // 2
        end = start + window - searched + quiet
        yield start, end
        start = end
    yield start, len(samples)


def _flags(numbers: tuple[int, ...], vocab: int) -> Tensor:
    flags = torch.zeros(vocab, dtype=torch.bool)
    flags[[i for i in numbers if i < vocab]] = True
    return flags


def _of_file(vocab: int, path: Path) -> SpeechTokens:
    found = usual_tokens(vocab)
    if found is None:
        remedy = "Give a file of OpenAI's whisper package, or a Hugging Face folder."
        raise CheckpointError("a Whisper of OpenAI has 51864 to 51866 tokens", got=f"{vocab} in {path}", remedy=remedy)
    return found


def _require_whisper(model: Any, path: Path) -> None:
    if isinstance(model, EncoderDecoder) and isinstance(model.encoder.embed, Frames):
        return
    got = f"{type(model).__name__} of {path}"
    remedy = "Give the folder of a Whisper, or one of OpenAI's files such as tiny.en.pt."
    raise ConfigError("speech is heard by a Whisper", got=got, remedy=remedy)
