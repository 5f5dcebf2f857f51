"""Text in and out: tokenizers, incremental decoding, stop strings, chat templates."""

from colibri.text.chat import render_chat
from colibri.text.decoder import IncrementalDecoder
from colibri.text.stops import StopMatcher
from colibri.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["IncrementalDecoder", "StopMatcher", "Tokenizer", "load_tokenizer", "render_chat"]
