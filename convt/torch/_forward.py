"""Objects that replace the ``forward`` of a single module.

They are stored in the module's own ``__dict__``. So the module keeps its class, which tools check (``type(m) is
torch.nn.ConvTranspose2d``) and parametrizations change. Removing the object restores the module completely.
"""

import sys
import weakref

import torch

_MODULE_FILE = torch.nn.Module._call_impl.__code__.co_filename


class Forward:
    """The base class of replacements for a module's forward. Subclasses define ``__call__`` and ``torch_forward``, torch's
    function."""

    def __init__(self, module, *settings):
        """``module`` is None for a copy whose module no longer exists."""
        # A strong reference would be a cycle and delay freeing the module's memory.
        self._module = (lambda: None) if module is None else weakref.ref(module)
        self.settings = settings

    def is_of(self, module):
        """Check whether this object was created for a module, and not for one of which the module is a shallow copy."""
        return self._module() is module

    def module(self):
        """Return the module whose forward was called. Only ``__call__`` may call this, because it inspects the stack.

        It is the module that this object was created for, or a shallow copy of that module. A shallow copy shares this object
        but may have other attributes.
        """
        if not torch.compiler.is_compiling():
            frame = sys._getframe(2)
            # Only frames of torch.nn.Module, because reading the variables of a frame keeps them alive until it ends.
            if frame.f_code.co_filename == _MODULE_FILE:
                caller = frame.f_locals.get("self")
                if caller is not None and vars(caller).get("forward") is self:
                    return caller
        module = self._module()
        if module is None:
            raise RuntimeError("forward: got a call after its module was deleted, wanted a call while the module exists")
        return module

    @property
    def __wrapped__(self):
        """Return the forward that this object replaces. `inspect.signature` uses it."""
        module = self._module()
        if module is None:  # but a shallow copy of it may exist
            return self.torch_forward.__get__(self)
        return type(module).forward.__get__(module)

    def __getattr__(self, name):
        """Return an attribute of the replaced forward, such as ``__code__``, from which tools read argument names."""
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo):
        module = self._module()
        copied = memo.get(id(module))
        if copied is None:
            # A shallow copy of the module may be copied: the last module in ``memo`` that has no attributes yet.
            modules = (each for each in reversed(memo.values()) if isinstance(each, torch.nn.Module) and not vars(each))
            copied = next(modules, module)
        return type(self)(copied, *self.settings)

    def __reduce__(self):
        return type(self), (self._module(), *self.settings)


def calling_module():
    """Return the innermost module whose call is on the stack, or None."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _MODULE_FILE and isinstance(module := frame.f_locals.get("self"), torch.nn.Module):
            return module
        frame = frame.f_back
    return None


def set_attribute(undo, module, name, value):
    """Set an attribute of a module, without ``__setattr__``, which the module's class may replace.

    ``undo`` is a contextlib.ExitStack, which gets a call that restores the attribute.
    """
    attributes = vars(module)
    if name in attributes:
        undo.callback(attributes.__setitem__, name, attributes[name])
    else:
        undo.callback(attributes.pop, name, None)
    attributes[name] = value


def install(undo, module, kind, *settings):
    """Give a module a Forward of this class with these settings, unless it has it. ``undo`` is that of `set_attribute`."""
    present = vars(module).get("forward")
    if type(present) is not kind or present.settings != settings or not present.is_of(module):
        set_attribute(undo, module, "forward", kind(module, *settings))


def installed(module, kind=Forward):
    """Return the Forward of a module if it is an instance of ``kind``, else None."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, kind) else None


def remove(module):
    """Restore the forward of a module's class."""
    if installed(module) is not None:
        del vars(module)["forward"]


def unhooked(module, kind=()):
    """Check whether calling a module only calls its class's forward or a Forward of this kind, without hooks or compilation."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = vars(module).get("forward")
    return not any(hooks) and module._compiled_call_impl is None and (own is None or isinstance(own, kind))
