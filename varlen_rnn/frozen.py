"""What stays as it was made."""


class Frozen:
    """The base of immutable objects: kernels trust their arrays, so no attribute can be replaced."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__}.{name} stays as it was made: tensors share it, kernels trust it")

    __delattr__ = lambda self, name: self.__setattr__(name, None)
    _put = object.__setattr__
