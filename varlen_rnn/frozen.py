"""The base class of immutable objects."""


class Frozen:
    """The base class of immutable objects: setting an attribute raises, because kernels trust their arrays."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed, because other tensors share this object")

    __delattr__ = lambda self, name: self.__setattr__(name, None)
    _put = object.__setattr__
