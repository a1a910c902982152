"""From the messages of a chat to one prompt: by the template of the tokeniser, or joined line by line."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continua.files import read_bytes
from continua.serve.wire import Refusal

SETTINGS = "tokenizer_config.json"
ALONE = "chat_template.jinja"
LONGEST = 200_000  # characters of a prompt that a template may make


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Hugging Face's kind, with the texts of the tokens that begin and end a text.

    It comes with a folder, so it runs in jinja's immutable sandbox: it sees the messages, changes nothing and reaches
    nothing else.
    """

    source: str
    begin: str = ""
    end: str = ""

    def prompt(self, messages: Sequence[dict[str, str]]) -> str:
        """The text of a chat, open for the answer."""
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(words: str) -> None:
            raise TemplateError(words)

        room = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        room.globals.pop("lipsum", None)
        room.globals["raise_exception"] = refuse
        room.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        try:
            made = room.from_string(self.source).render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                bos_token=self.begin,
                eos_token=self.end,
                tools=None,
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as problem:
            words = f"The chat template refuses these messages: {str(problem)[:200]}"
            raise Refusal(400, words, param="messages") from None
        if len(made) > LONGEST:
            raise Refusal(400, "The chat template makes too long a prompt of these messages.", param="messages")
        return made


def template_in(folder: Path) -> ChatTemplate | None:
    """The template that a folder names; None where it names none that can be read."""
    try:
        said = json.loads(read_bytes(folder / SETTINGS)) if (folder / SETTINGS).is_file() else {}
        alone = read_bytes(folder / ALONE).decode("utf-8") if (folder / ALONE).is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    source = alone or said.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, _token(said.get("bos_token")), _token(said.get("eos_token")))


def _token(said: Any) -> str:
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) else ""


def joined(messages: Sequence[dict[str, str]]) -> str:
    """The texts line by line: for models that know no roles.

    >>> joined([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f("}])
    'Be brief.\\ndef f('
    """
    return "\n".join(message["content"] for message in messages)
