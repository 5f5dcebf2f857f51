"""/v1/embeddings with the real `openai` client."""

from __future__ import annotations

import numpy as np
import openai
import pytest

from .conftest import Server


def test_vectors_do_not_depend_on_the_company(server: Server) -> None:
    texts = ["In the beginning.", "Tell me of day two. " * 60, "In the beginning."]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        together = client.embeddings.create(model="colibri-demo", input=texts)
        alone = [client.embeddings.create(model="colibri-demo", input=text, encoding_format="float") for text in texts]
        vectors = [np.array(one.embedding) for one in together.data]
        for vector, other in zip(vectors, alone, strict=True):
            np.testing.assert_allclose(vector, other.data[0].embedding, atol=1e-7)
            assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert vectors[0].tolist() == vectors[2].tolist()
        assert abs(vectors[0] - vectors[1]).max() > 1e-3
        ids = server.post("/tokenize", {"text": texts[0]}).json()["tokens"]
        by_ids = client.embeddings.create(model="colibri-demo", input=ids)
        assert by_ids.data[0].embedding == together.data[0].embedding
        assert together.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            client.embeddings.create(model="colibri-demo", input="a", dimensions=3)
    assert "mean" in server.post("/v1/embeddings", {"input": "a"}).json()["pooling"]
