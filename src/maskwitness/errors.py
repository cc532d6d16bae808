"""What can go wrong, said once.

::

    MaskwitnessError
    ├── InputError       a file or data set that cannot be audited as it is
    ├── ConfigError      a setting that does not exist or does not fit
    ├── GeometryError    coordinates that do not describe a place in space
    └── StoreError       a run directory that is not what it claims to be

Inner code raises the local fact. Whoever knows the scan or the file adds it with
``error.add_note(...)``; the command line prints the message and its notes, never a traceback.
"""


class MaskwitnessError(Exception):
    """Anything a user can put right."""

    def __str__(self) -> str:
        """Return the message as one string, whatever it was raised with."""
        return " ".join(str(part) for part in self.args)


class InputError(MaskwitnessError):
    """A file or data set that cannot be audited as it is."""


class ConfigError(MaskwitnessError):
    """A setting that does not exist, or a value that does not fit it."""


class GeometryError(MaskwitnessError):
    """Coordinates that do not describe a place in space."""


class StoreError(MaskwitnessError):
    """A run directory that is missing, unfinished, locked or damaged."""


def explain(error: BaseException) -> str:
    """Return the message of ``error`` with its notes, each on a line of its own."""
    notes = getattr(error, "__notes__", [])
    return "\n".join([str(error) or type(error).__name__, *notes])
