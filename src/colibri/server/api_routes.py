"""The routes of the APIs: OpenAI's, Anthropic's, Ollama's and Colibri's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from colibri.server import anthropic, chat, completions, embeddings, ollama, other_routes, responses
from colibri.server.anthropic import CountRequest, MessagesRequest
from colibri.server.embeddings import EmbeddingsRequest
from colibri.server.fields import header
from colibri.server.ollama import GenerateRequest, OllamaChatRequest, ShowRequest
from colibri.server.problems import json_response
from colibri.server.responses import ResponsesRequest
from colibri.server.schema import ChatRequest, CompletionRequest, DetokenizeRequest, InferRequest, TokenizeRequest
from colibri.server.service import Service
from colibri.server.streaming import unless_left

B = TypeVar("B", bound=BaseModel)
Handler = Callable[[Service, B, Request], Awaitable[Response]]


async def answered(service: Service, body: B, request: Request, handler: Handler[B]) -> Response:
    """The answer to a request, which says what fields of it were ignored. It waits while the model is loaded again."""
    await unless_left(request, service.in_flight.enter())
    try:
        ignored = service.fields.sift(body, service.tokenizer)
        response = await handler(service, body, request)
        response.headers.update(header(ignored))
        return response
    finally:
        service.in_flight.leave()


def install(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    _install_openai(app, service)
    _install_responses(app, service)
    _install_anthropic(app, service)
    _install_own(app, service)
    _install_ollama(app, service)


def _install_openai(app: FastAPI, service: Service) -> None:

    @app.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await answered(service, body, request, chat.chat)

    @app.post("/v1/completions", response_class=Response)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        return await answered(service, body, request, completions.complete)

    @app.post("/v1/embeddings", response_class=Response)
    async def embed(body: EmbeddingsRequest, request: Request) -> Response:
        return await answered(service, body, request, embeddings.embed)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(service)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return card(service)


def card(service: Service) -> dict[str, Any]:
    """The model as /v1/models shows it."""
    ready = service.supervisor.ready
    return {
        "id": service.name, "object": "model", "created": service.created, "owned_by": "colibri",
        "max_model_len": ready.context if ready is not None else None,
    }  # fmt: skip


def _install_responses(app: FastAPI, service: Service) -> None:
    @app.post("/v1/responses", response_class=Response)
    async def respond(body: ResponsesRequest, request: Request) -> Response:
        return await answered(service, body, request, responses.respond)

    @app.get("/v1/responses/{identity}", response_class=Response)
    async def response(identity: str) -> Response:
        return json_response(service.responses.find(identity).response)

    @app.delete("/v1/responses/{identity}", response_class=Response)
    async def forget(identity: str) -> Response:
        service.responses.forget(identity)
        return json_response({"id": identity, "object": "response", "deleted": True})


def _install_anthropic(app: FastAPI, service: Service) -> None:
    @app.post("/v1/messages", response_class=Response)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        return await answered(service, body, request, anthropic.messages)

    @app.post("/v1/messages/count_tokens", response_class=Response)
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        return await answered(service, body, request, anthropic.count_tokens)


def _install_own(app: FastAPI, service: Service) -> None:
    @app.post("/infer", response_class=Response)
    async def infer(body: InferRequest, request: Request) -> Response:
        return await answered(service, body, request, other_routes.infer)

    @app.post("/tokenize", response_class=Response)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        return await answered(service, body, request, other_routes.tokenize)

    @app.post("/detokenize", response_class=Response)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        return await answered(service, body, request, other_routes.detokenize)


def _install_ollama(app: FastAPI, service: Service) -> None:
    @app.post("/api/chat", response_class=Response, responses=ollama.ERRORS)
    async def chat_of_ollama(body: OllamaChatRequest, request: Request) -> Response:
        return await answered(service, body, request, ollama.chat)

    @app.post("/api/generate", response_class=Response, responses=ollama.ERRORS)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        return await answered(service, body, request, ollama.generate)

    @app.post("/api/show", response_class=Response, responses=ollama.ERRORS)
    async def show(body: ShowRequest, request: Request) -> Response:
        return await answered(service, body, request, ollama.show)

    @app.get("/api/tags", responses=ollama.ERRORS)
    async def tags() -> dict[str, Any]:
        return ollama.tags(service)

    @app.get("/api/ps", responses=ollama.ERRORS)
    async def running() -> dict[str, Any]:
        return ollama.running(service)

    @app.get("/api/version", responses=ollama.ERRORS)
    async def version() -> dict[str, Any]:
        return ollama.version()
