"""Objects that stand in for the ``forward`` of one module each.

They lie in the module's own ``__dict__``. So the module stays an object of its class, which tools ask for (``type(m) is
torch.nn.ConvTranspose2d``), which parametrizations change, and which is all that is left when the object is taken away.
"""

import sys
import weakref

import torch

_MODULE_FILE = torch.nn.Module._call_impl.__code__.co_filename


class Forward:
    """Computes what ``module(...)`` returns. Subclasses say how, in ``__call__``."""

    def __init__(self, module, *settings):
        self._module = weakref.ref(module)  # a strong reference would keep the module's memory until a garbage collection
        self.settings = settings

    def module(self):
        """The module whose forward was called: the one that this object was made for, or a shallow copy of it, which has the
        same ``__dict__`` entries and may have other attributes by now. To be called by ``__call__`` itself."""
        if not torch.compiler.is_compiling():
            frame = sys._getframe(2)
            # Only frames of torch.nn.Module, because a look at the variables of a frame keeps them alive until it ends.
            if frame.f_code.co_filename == _MODULE_FILE:
                caller = frame.f_locals.get("self")
                if caller is not None and vars(caller).get("forward") is self:
                    return caller
        module = self._module()
        if module is None:
            raise RuntimeError("forward: got a call after the module that it belongs to was deleted, wanted a call of a module")
        return module

    @property
    def __wrapped__(self):
        """The forward that this one stands in for; `inspect.signature` asks for it."""
        module = self._module()
        return type(module).forward.__get__(module)

    def __getattr__(self, name):
        """All else that a forward has, such as ``__code__``: tools look at it to learn the names of arguments."""
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo):
        module = self._module()
        return type(self)(memo.get(id(module), module), *self.settings)

    def __reduce__(self):
        return type(self), (self._module(), *self.settings)


def install(module, forward):
    """Let a Forward compute what a module returns."""
    module.forward = forward


def installed(module, kind=Forward):
    """The Forward of a module, if it has one of this kind, else None."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, kind) else None


def remove(module):
    """Give a module its class's forward again."""
    if installed(module) is not None:
        del module.forward


def unhooked(module, kind=()):
    """Whether to call a module is to call its class's forward, or a Forward of this kind, and nothing else."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = vars(module).get("forward")
    return not any(hooks) and module._compiled_call_impl is None and (own is None or isinstance(own, kind))
