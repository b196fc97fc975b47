"""Classes that stand for others in a model: the same but for their forward."""


def standing_for(cls, forward, make, **attributes):
    """A class like ``cls`` with another forward, and more attributes. Its modules are copied and pickled by ``make``, a
    function of a module that makes this class of ``cls`` again."""
    more = {"forward": forward, "_convt_swapped": cls, "_convt_make": staticmethod(make), "__reduce_ex__": _reduce} | attributes
    return type(cls.__name__, (cls,), {**more, "__module__": cls.__module__, "__doc__": cls.__doc__})


def original(cls):
    """The class that another one stands for, or the class itself."""
    return getattr(cls, "_convt_swapped", cls)


def _reduce(self, protocol):
    state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
    return _revive, (type(self)._convt_make, original(type(self))), state


def _revive(make, cls):
    return make(cls).__new__(make(cls))
