"""Chat templates are programs of strangers: rendered as Hugging Face renders them, in a process that can be ended."""

import gc
import json
from pathlib import Path

import pytest
import torch

from continua.convert.chat import LARGEST, ChatTemplate, Renderer, chat_ends, require_template, template_in
from continua.convert.special_tokens import SpecialTokens
from continua.convert.tokenizer import Pieces
from continua.data.tokens import Characters
from continua.errors import CheckpointError, ConfigError
from tests.lazy import Lazily
from tests.refusals import refused

transformers = Lazily("transformers")
tokenizers = Lazily("tokenizers")
pytestmark = pytest.mark.spec("B14", "B13")

MESSAGES = [{"role": "user", "content": "hi"}]
TALK = [
    {"role": "system", "content": "Be “brief”."},
    {"role": "user", "content": " What is 2+2? "},
    {"role": "assistant", "content": "4\n"},
    {"role": "user", "content": "And 3 < 4 & \\ 'so'?"},
]
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TEMPLATES = {  # in the manner of the families in use
    "plain": PLAIN,
    "marks": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "turns": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles take turns') }}{% endif %}{% if message['role'] == 'user' %}"
    "[INST] {{ first ~ '\n\n' if first is defined and loop.first else '' }}{{ message['content'].strip() }} [/INST]"
    "{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}",
    "controls": "{% set ns = namespace(seen=0) %}{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}"
    "{% endif %}{% set ns.seen = ns.seen + 1 %}{% if ns.seen > 2 %}{% break %}{% endif %}"
    "{{ m | tojson }}{{ {'a': [1, none, true]} | tojson(indent=2) }}{% endfor %}{{ strftime_now('%Y') | length }}"
    "{% macro call(x) %}<{{ x }}>{% endmacro %}{{ call(messages | length) }}{% if tools is none %} none{% endif %}",
    "blocks": """{%- for m in messages %}
        {%- if m.role == "assistant" %}
    {% generation %}{{ m.content }}{% endgeneration %}
        {%- else %}
    {{- m.role | upper }}={{ m.content | replace(" ", "_") }}
        {%- endif %}
    {%- endfor %}
    """,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_hugging_face(name: str) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    wanted = theirs.apply_chat_template(TALK, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(TEMPLATES[name], "<s>", "</s>").prompt(TALK) == wanted


HOSTILE = {
    "classes": "{{ messages.__class__.__mro__ }}",
    "subclasses": "{{ ''.__class__.__base__.__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "attributes by filter": "{{ (messages | attr('__class__')).__mro__ }}",
    "a format": "{{ '{0.__class__}'.format(messages) }}{{ 1 / 0 }}",
    "changes": "{{ messages.append(1) }}",
    "the dialect": "{{ self.__init__.__globals__ }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "refuses": "{{ raise_exception('no system') }}",
    "divides": "{{ 1 / 0 }}",
    "broken": "{% broken",
    "unknown": "{{ messages | nothing }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long range": "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "long texts": "{{ 'a' * 10**10 }}",
    "text of texts": "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}{{ ns.s | length }}",
    "many pieces": "{% for i in range(99999) %}{{ 'many words here' }}{% endfor %}",
    "wide": "{{ 'a' | center(10**10) }}",
    "a power": "{{ 10 ** (10 ** 9) % 7 }}",
    "lists": "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(seconds=0.3)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_are_refused(renderer: Renderer, name: str) -> None:
    with refused(ConfigError, "", "continua generate"):
        renderer.render(HOSTILE[name], {"messages": MESSAGES})


def test_what_a_template_cannot_see_is_nothing(renderer: Renderer) -> None:
    for hidden in ("raise_exception.__globals__", "messages | attr('__class__')", "''.__class__", "self.__dict__"):
        assert renderer.render(f"<{{{{ {hidden} }}}}>", {"messages": MESSAGES}) == "<>"


def test_a_template_that_was_ended_leaves_the_next_one_alone(renderer: Renderer) -> None:
    child = renderer._running()
    assert renderer.render(PLAIN, {"messages": MESSAGES}) == "user: hi\n"
    assert renderer._running() is child
    child.kill()
    child.wait()
    assert renderer.render(PLAIN, {"messages": MESSAGES}) == "user: hi\n"
    assert renderer._running() is not child


def test_a_process_ends_with_its_template() -> None:
    template = ChatTemplate(PLAIN)
    template.prompt(MESSAGES)
    child = template._renderer._running()
    assert child.poll() is None
    del template
    gc.collect()
    assert child.poll() is not None


def test_long_templates_and_messages() -> None:
    with refused(ConfigError, f"{LARGEST + 1:,} characters", "continua generate"):
        ChatTemplate("a" * (LARGEST + 1)).prompt(MESSAGES)
    template = ChatTemplate(PLAIN)
    long = "ä" * 150_000
    assert template.prompt([{"role": "user", "content": long}]) == f"user: {long}\nassistant:"
    with refused(ConfigError, "more than 200000 characters", "Change the messages"):
        template.prompt([{"role": "user", "content": long + long}])


def test_templates_of_folders(tmp_path: Path) -> None:
    assert template_in(tmp_path) is None
    with refused(CheckpointError, "no chat_template.jinja", "continua generate"):
        require_template(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": PLAIN, "eos_token": {"content": "E"}}))
    assert template_in(tmp_path) == ChatTemplate(PLAIN, "", "E")
    several = [{"name": "tool_use", "template": "no"}, "strange", {"name": "default", "template": "yes"}]
    settings.write_text(json.dumps({"chat_template": several, "bos_token": "B"}))
    assert template_in(tmp_path) == ChatTemplate("yes", "B", "")
    (tmp_path / "chat_template.jinja").write_text("alone", encoding="utf-8")
    assert template_in(tmp_path) == ChatTemplate("alone", "B", "")
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert template_in(tmp_path) is None
    (tmp_path / "chat_template.jinja").unlink()
    for damaged in ("[", "[]", json.dumps({"chat_template": 3}), json.dumps({"chat_template": []}), "[" * 99999):
        settings.write_text(damaged)
        assert template_in(tmp_path) is None


def test_tokens_that_a_template_writes_are_written_once() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[B]": 0, "hi": 1, "[E]": 2, "?": 3}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[B]", "[E]"])
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[B] $A", special_tokens=[("[B]", 0)])
    tokens = Pieces(made)
    template = ChatTemplate("{{ bos_token }} {{ messages[0].content }}", "[B]", "[E]")
    assert tokens.encode("hi").tolist() == [0, 1]
    assert template.ids(MESSAGES, tokens).tolist() == [0, 1]
    assert torch.equal(template.ids(MESSAGES, Characters("[B] hi")), Characters("[B] hi").encode("[B] hi"))
    assert chat_ends(template, tokens, SpecialTokens(ends=(3,))) == (3, 2)
    assert chat_ends(None, tokens, SpecialTokens(ends=(3,))) == (3,)
    assert chat_ends(ChatTemplate("", "", "none"), tokens, SpecialTokens()) == ()
