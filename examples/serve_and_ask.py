"""Serve a run of ``continua demo`` and talk to it with the official ``openai`` package.

    python examples/serve_and_ask.py --run runs/demo

The server runs in a process of its own on a free port of this machine, and ends with SIGTERM.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import APIStatusError, OpenAI


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a server of this run."""
    words = [sys.executable, "-m", "continua", "serve", str(run), "--port", "0", "--threads", "1"]
    job = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stderr is not None
        line = next(line for line in job.stderr if "serving" in line)
        yield line.split(" at ")[1].split(" ")[0]
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)


def main() -> None:
    """Ask for a text, a stream, a deadline, a size, and for something that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"))
    run = parser.parse_args().run
    with serving(run) as url:
        client = OpenAI(base_url=url, api_key="none", max_retries=0)
        names = [model.id for model in client.models.list()]
        name = names[0]
        print("models:", ", ".join(names))
        answer = client.completions.create(model=name, prompt="def ", max_tokens=24, temperature=0)
        print(f"{answer.system_fingerprint}: {answer.choices[0].text!r}")
        stream = client.completions.create(model=name, prompt="def ", max_tokens=24, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in stream) == answer.choices[0].text
        urgent = client.completions.create(
            model=name, prompt="def ", max_tokens=24, temperature=0, extra_body={"latency_ms": 10_000}
        )
        assert urgent.choices[0].text == answer.choices[0].text, "there is time for the native size"
        fast = client.completions.create(model=f"{name}:fast", prompt="def ", max_tokens=24, temperature=0)
        print(f"{fast.system_fingerprint}: {fast.choices[0].text!r}")
        messages = [{"role": "user", "content": "class "}]
        chat = client.chat.completions.create(model=name, messages=messages, max_tokens=24)  # type: ignore[arg-type]
        print(f"chat: {chat.choices[0].message.content!r}")
        try:
            client.completions.create(model=name, prompt="def ", max_tokens=100, extra_body={"latency_ms": 0.01})
        except APIStatusError as refused:
            print(f"{refused.status_code}: {refused.message}")
        else:
            raise AssertionError("no size is that quick")


if __name__ == "__main__":
    main()
