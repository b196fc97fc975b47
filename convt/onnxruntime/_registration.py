"""Registration of the execution provider with ONNX Runtime."""

import onnxruntime

from . import _provider, library


def register() -> None:
    """Register convt's execution provider with ONNX Runtime, for the whole process. Further calls do nothing.

    It stays registered, because ONNX Runtime must not lose a provider that a session may use.
    """
    if get_ep_name() not in onnxruntime.get_available_providers():
        onnxruntime.register_execution_provider_library(get_ep_name(), get_library_path())


def get_library_path() -> str:
    """Return the path of the provider's library, for ``onnxruntime.register_execution_provider_library``."""
    return str(library.__file__)


def get_ep_names() -> list[str]:
    """Return the names of the providers in the library: only ``"ConvtExecutionProvider"``."""
    return [_provider.NAME]


def get_ep_name() -> str:
    """Return the name of the provider: ``"ConvtExecutionProvider"``."""
    return _provider.NAME
