"""The HTTP service: a web server in one process, the engine in another, messages between them."""
