"""The base of errors that the operator has to fix, which a command prints in one line."""


class OperatorError(Exception):
    """Base class of operator errors; the message says what is wrong and how to fix it."""
