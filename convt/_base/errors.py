"""convt's own exception class."""


class BackendUnavailableError(RuntimeError):
    """Raised when a backend or instruction set requested by name is missing or does not support the problem or its data."""
