"""The one error class convt adds to Python's own."""


class BackendUnavailableError(RuntimeError):
    """A backend or instruction set was asked for by name and is not there; the message says how to get it."""
