"""What goes wrong, and what should be known."""


class EquipoiseError(ValueError):
    """A mistake that the user can mend. The message names the parameter, the value and the fix."""


class EquipoiseWarning(UserWarning):
    """Something that a reader of the results should know."""


for _kind in (EquipoiseError, EquipoiseWarning):
    _kind.__module__ = "equipoise"  # where users find them, and what a stack trace shows
