"""LangChain over `colibri serve`: python langchain_client.py [URL] (pip install langchain-openai)."""

from __future__ import annotations

import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI


def main() -> None:
    """One whole answer, one stream, one answer that fits a schema."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="unused", model="colibri-demo", temperature=0.7, max_tokens=60)
    messages = [SystemMessage("You tell stories."), HumanMessage("Tell me of the beginning.")]
    print(chat.invoke(messages).content)
    for part in chat.stream(messages):
        print(part.content, end="", flush=True)
    print()
    schema = {
        "title": "answer",
        "type": "object",
        "properties": {"good": {"type": "boolean"}, "stars": {"enum": [1, 2, 3, 4, 5]}},
        "required": ["good", "stars"],
        "additionalProperties": False,
    }
    print(chat.with_structured_output(schema, method="json_schema").invoke("How was it?"))


if __name__ == "__main__":
    main()
