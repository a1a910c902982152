"""The messages of a chat as one prompt, where the model has no template for them."""

from collections.abc import Sequence


def joined(messages: Sequence[dict[str, str]]) -> str:
    """The texts line by line: for models that know no roles.

    >>> joined([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def f("}])
    'Be brief.\\ndef f('
    """
    return "\n".join(message["content"] for message in messages)
