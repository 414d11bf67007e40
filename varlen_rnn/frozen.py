"""What stays as it was made."""


class Frozen:
    """The base of what stays as it was made: kernels trust its arrays, so no others can be put in their places."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(f"{type(self).__name__}.{name} stays as it was made: tensors share it, kernels trust it")

    __delattr__ = lambda self, name: self.__setattr__(name, None)
    _put = object.__setattr__
