"""Any checkpoint into GGUF files: which tensor gets which format, tokenizers, importance matrices, checks."""
