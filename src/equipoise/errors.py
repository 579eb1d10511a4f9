"""The error and the warning that the library raises."""


class EquipoiseError(ValueError):
    """A mistake that the user can correct. The message names the parameter, the value found and how to correct it."""


class EquipoiseWarning(UserWarning):
    """Something that a reader of the results should know."""


for _kind in (EquipoiseError, EquipoiseWarning):
    _kind.__module__ = "equipoise"  # where users find them, and what a stack trace shows
