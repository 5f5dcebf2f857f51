"""The OpenAI client over `colibri serve`: python openai_client.py [URL] (pip install openai)."""

from __future__ import annotations

import sys

import openai


def main() -> None:
    """A stream, then an answer that fits a schema."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused")
    model = client.models.list().data[0].id
    question = [{"role": "user", "content": "Tell me of the beginning."}]
    for chunk in client.chat.completions.create(model=model, messages=question, max_tokens=60, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
    schema = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}, "stars": {"enum": [1, 2, 3, 4, 5]}},
        "required": ["good", "stars"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model=model, messages=question, response_format=form)
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
