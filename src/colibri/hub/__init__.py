"""Models by name: what lies in Hugging Face's cache, fetching what does not, which quantisation, and suggestions.

The library huggingface_hub is imported where the network is used, so a model that is in the cache costs nothing of it.
"""
